#!/bin/sh
# The image's entrypoint: `docker run IMAGE convert …` is `reshard convert …`; the other programs run under their own
# names, as the workers of Prefect and Kubernetes expect. A list, because `reshard diff` is not /usr/bin/diff.

# A Prefect worker that is stopped kills its runs: they stay Running until the automation finds them silent. So the runs
# are stopped first: within seconds they end as Crashed and give up their targets, and Retry resumes them.
stop_worker() {
    runs=$(cat "/proc/$worker/task/$worker/children")
    for run in $runs; do kill -TERM "$run"; done
    for run in $runs; do while kill -0 "$run" 2>/dev/null; do sleep 0.2; done; done
    kill -TERM "$worker"
    wait "$worker"
    exit $?
}

case "${1-} ${2-}" in
"prefect worker")
    # a shell's background process ignores SIGINT, which the worker sends itself when it is stopped
    env --default-signal=INT "$@" &
    worker=$!
    trap stop_worker TERM INT
    wait "$worker"
    ;;
"prefect "* | "dask "* | "python "* | "sh "* | "reshard "*) exec "$@" ;;
*) exec reshard "$@" ;;
esac
