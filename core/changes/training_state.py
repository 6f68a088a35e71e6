"""Training state: the names of tensors that only training needs. This is the only table of them.

Each row says who gives the names, and where that was read: in the source of MindSpore 2.10, MindFormers 2.0 (parts of
older versions are still there, under `modules`), PyTorch 2.13 and Megatron-Core 0.16. The kind of a row is what reports
call it, and tells the optimizer's state from the network's.

Some of MindSpore's names for state are names of layers, too: `linear.weight`, `moment.bias`. They count only if the
rest of the name is itself a parameter; `linear`, which is very common, only if `moments` of that parameter is there as
well, since Ftrl gives it both.

Weights, although they look like state: `expert_bias` and `tid2eid` of a router.
"""

import re
from collections.abc import Collection, Sequence
from enum import StrEnum

from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.text.options import option

_MAX_LISTED = 3


class StateKind(StrEnum):
    """What a tensor of training state is, as reports call it."""

    OPTIMIZER = "optimizer state"
    GRADIENTS = "accumulated gradients"
    LOSS_SCALE = "loss scaling"
    PROGRESS = "training progress"
    ROUTING = "statistics of routers and attention"
    DROPOUT = "dropout seeds"
    CACHE = "attention caches"
    EXPERT_ORDER = "order of experts"

    @property
    def is_of_network(self) -> bool:
        """True if the network owns it, not the optimizer: MindFormers saves it in the network's files."""
        return self in (StateKind.ROUTING, StateKind.DROPOUT, StateKind.CACHE, StateKind.EXPERT_ORDER)


class _Rule(Record):
    """Names that one origin gives to one kind of state.

    Attributes:
        origin: who gives them, and where that was read.
        shaped: the text before a parameter's name; the state has the shape and the sharding of that parameter.
        prefixes: what names begin with.
        ambiguous: the same, but layers may begin so, too: the rest of the name must be a parameter.
        names: whole names.
        endings: last components of names.
        slots: last components of names that have a component `state` before.
        within: components that are somewhere before the last one.
    """

    origin: str
    kind: StateKind
    shaped: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    within: tuple[str, ...] = ()


_RULES = (
    _Rule(
        "MindSpore: nn.wrap.cell_wrapper, nn.wrap.grad_reducer, nn.wrap.loss_scale, parallel.nn",
        StateKind.GRADIENTS,
        shaped=("accu_grads.",),
        ambiguous=("accu_grads",),
    ),
    _Rule(
        "MindSpore: AdamWeightDecay, Adam, LazyAdam, AdaMax, Momentum, Ftrl, Thor, Lamb, mint's Adam, AdamW and SGD, "
        "Adadelta, experimental Adamax; MindFormers: AdamW",
        StateKind.OPTIMIZER,
        shaped=(
            *("adam_m.", "adam_v.", "moment1.", "moment2.", "vhat.", "moments.", "lamb_m.", "lamb_v."),
            *("exp_avg_sq.", "max_exp_avg_sq.", "momentum_buf.", "accum_update.", "exp_inf."),
        ),
    ),
    _Rule(
        "PyTorch: SGD; DeepSpeed: Muon, as ZeRO's rank files are named here",
        StateKind.OPTIMIZER,
        shaped=("momentum_buffer.",),
    ),
    _Rule(
        "MindSpore: mint's Adam and AdamW, Adafactor, RMSProp, SGD, Adagrad, Adadelta, Ftrl, Rprop, ASGD, NAdam; "
        "PyTorch, as FSDP's and ZeRO's rank files are named here: step",
        StateKind.OPTIMIZER,
        ambiguous=(
            *("exp_avg.", "moment.", "mean_grad.", "mean_square.", "accum.", "stat.", "linear.", "prev."),
            *("step_size.", "ax_.", "ax.", "exp_avg_sq_row_", "exp_avg_sq_col_", "exp_avg_sq_", "mu_", "eta_"),
            *("mu_product_", "step."),
        ),
    ),
    _Rule(
        "MindSpore: optimizers' numbers",
        StateKind.OPTIMIZER,
        names=(
            *("global_step", "learning_rate", "weight_decay", "momentum", "beta1_power", "beta2_power", "state_step"),
            *("step_t", "afactor_step", "cov_step", "fake_param", "fake_lr"),
        ),
        prefixes=("learning_rate_group_",),
    ),
    _Rule(
        "MindSpore: nn.wrap.loss_scale, amp; MindFormers: wrapper, adaptive_loss_scale",
        StateKind.LOSS_SCALE,
        names=(
            *("scale_sense", "loss_scale", "scale_value", "current_iterator_step", "last_overflow_iterator_step"),
            *("scale_window", "list_index", "scale_window_up_count", "scale_window_down_count"),
        ),
    ),
    _Rule(
        "MindSpore: callbacks; the local norms and losses that MindFormers reports",
        StateKind.PROGRESS,
        names=("epoch_num", "step_num", "batch_num", "cur_rank", "_squared_device_local_norm"),
        endings=("_device_local_loss",),
    ),
    _Rule(
        "MindFormers: core.optim.muon, which has placeholders besides; core.optim.came",
        StateKind.OPTIMIZER,
        shaped=("muon_m.",),
        ambiguous=("exp_avg_insta_row_", "exp_avg_insta_col_"),
    ),
    _Rule(
        "MindFormers, PyNative: optimizer.adamw and muon keep a float32 copy of each weight",
        StateKind.OPTIMIZER,
        shaped=("main_param.",),
    ),
    _Rule(
        "MindFormers, graph mode: moe.router, moe.ffn, moe.moe_layer, flash_attention",
        StateKind.ROUTING,
        endings=(
            *("fi_accu", "expert_load", "num_tokens_per_expert", "expert_load_history", "expert_load_history_cnt"),
            "max_logits_val",
        ),
    ),
    _Rule(
        "MindFormers, older names: modules.transformer.moe and moev3",
        StateKind.ROUTING,
        endings=("fi_parameter", "pi_cache", "fi_cache", "cumsum_value"),
    ),
    _Rule(
        "MindFormers, older names: models.llama and glm2, trained with sequences in chunks",
        StateKind.CACHE,
        endings=("key_cache", "value_cache", "key_cache_grad", "value_cache_grad", "seq_chunk"),
    ),
    _Rule(
        "MindFormers, PyNative: moe.moe_layer, moe.router",
        StateKind.ROUTING,
        endings=("tokens_per_expert", "global_tokens_per_expert", "ga_steps"),
    ),
    _Rule(
        "MindFormers, graph mode: transformer.dropout",
        StateKind.DROPOUT,
        within=("hidden_states_dropout", "embedding_dropout"),
    ),
    _Rule(
        "MindFormers, graph mode: moe.moe_layer, where experts were moved between devices",
        StateKind.EXPERT_ORDER,
        endings=("expert_mapping",),
    ),
    _Rule(
        "Megatron-Core: distributed_optimizer.sharded_param_state_fully_reshardable, optimizer.sharded_state_dict",
        StateKind.OPTIMIZER,
        shaped=(
            *("optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq.", "optimizer.state.param."),
            "optimizer.state.fp32_param.",
        ),
    ),
    _Rule(
        "PyTorch: optimizers and schedulers in a DCP, by get_state_dict and FSDP; Megatron-Core: torch_dist",
        StateKind.OPTIMIZER,
        prefixes=("optimizer.", "lr_scheduler."),
        # under another key than these, which the training chooses, only tensors of Adam and of momentum are known
        within=(
            "optim.state",
            "optim.param_groups",
            "optimizer.state",
            "optimizer.param_groups",
            "optimizer.distributed",
        ),
        slots=("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"),
    ),
)
_THOR = re.compile(r"matrix_[ag]_inv_\d+")
"""MindSpore's Thor: its numbered matrices."""

# layers may have names that begin with exp_avg., but hardly any beside a parameter of the rest of the name
STATE_PREFIXES = (*(prefix for rule in _RULES for prefix in rule.shaped), "exp_avg.")
"""Prefixes of states with the shape and the sharding of the parameter whose name follows."""
MASTER_PREFIXES = ("main_param.", "optimizer.state.param.", "optimizer.state.fp32_param.")
"""Those of float32 copies of weights."""


def _kinds(field: str, form: str = "{}") -> dict[str, StateKind]:
    """Text of one field of the rules -> kind."""
    return {form.format(text): rule.kind for rule in _RULES for text in getattr(rule, field)}


_NAMES, _ENDINGS, _SLOTS = _kinds("names"), _kinds("endings"), _kinds("slots")
_PREFIXES, _AMBIGUOUS = _kinds("shaped") | _kinds("prefixes"), _kinds("ambiguous")
_WITHIN = _kinds("within", ".{}.")
_FIRST, _FIRST_AMBIGUOUS = tuple(_PREFIXES), tuple(_AMBIGUOUS)


def state_kind(name: str, names: Collection[str]) -> StateKind | None:
    """Return what training needs a tensor for; None if it is a weight. `names` are all names of the checkpoint."""
    ending = name.rpartition(".")[2]
    kind = _NAMES.get(name) or _ENDINGS.get(ending)
    if kind is not None:
        return kind
    if name.startswith(_FIRST):
        return next(kind for prefix, kind in _PREFIXES.items() if name.startswith(prefix))
    path = f".{name}"
    if ending in _SLOTS and ".state." in path:
        return _SLOTS[ending]
    for part, kind in _WITHIN.items():
        if part in path:
            return kind
    if name.startswith(_FIRST_AMBIGUOUS):
        return next((kind for prefix, kind in _AMBIGUOUS.items() if _is_state_of_parameter(name, prefix, names)), None)
    return StateKind.OPTIMIZER if _THOR.fullmatch(name) else None


def is_training_state(name: str, names: Collection[str]) -> bool:
    """True if only training needs the tensor; `names` are all names of the checkpoint."""
    return state_kind(name, names) is not None


def expert_order_problem(names: Sequence[str]) -> str:
    """Describe why weights with tensors of `StateKind.EXPERT_ORDER` cannot be used by themselves."""
    return (
        f"training may have moved experts, so that their weights are not in the order of their numbers: "
        f"{listed([repr(name) for name in names], _MAX_LISTED)} tell the order, which reshard does not apply. If all "
        f"of them hold 0, 1, 2, …, no expert was moved: {option('exclude', ['*.expert_mapping'])}"
    )


def _is_state_of_parameter(name: str, prefix: str, names: Collection[str]) -> bool:
    parameter = name.removeprefix(prefix)
    return name.startswith(prefix) and parameter in names and (prefix != "linear." or f"moments.{parameter}" in names)
