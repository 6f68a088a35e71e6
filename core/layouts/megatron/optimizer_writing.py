"""The optimizer of a rank as Megatron-Core saves one that is not distributed: states by number, in groups.

Parameters with weight decay are a group, the others are another; in each they have the order of the model. With expert
parallelism, those of experts have an optimizer of their own after the other. Weights of half precision have masters.

    {"optimizer": {"state": {0: {"exp_avg", "exp_avg_sq", "step"}, …}, "param_groups": […]},
     "fp32_from_fp16_params": […]}
    {"state": …, "param_groups": …}       if all weights are float32
    [{…}, {…}]                            with an optimizer of experts
"""

from collections.abc import Iterator, Mapping, Sequence

from reshard.core.errors import LayoutError
from reshard.core.files.torch_file_writing import TensorPlace
from reshard.core.layouts.torch_dist.common import taken_over
from reshard.core.runtime.pickled import Pairs
from reshard.core.runtime.records import Record
from reshard.core.text.options import option

MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "param"
SCHEDULES = ("opt_param_scheduler", "num_floating_point_operations_so_far")


class OptimizedParameter(Record):
    """A parameter of a rank's model, in the order of its modules.

    Attributes:
        decays: it has weight decay.
        is_expert: it is of experts that other ranks do not have.
        states: slot -> the place of its state in the file; of a weight in half precision, also its master's.
    """

    decays: bool
    is_expert: bool
    states: Mapping[str, TensorPlace]


class OptimizerSettings(Record):
    """What the source's training has beside the states: its groups, without parameters, and its step."""

    groups: tuple[Mapping[str, object], ...]
    step: int | float

    @classmethod
    def of(cls, common: bytes) -> "OptimizerSettings":
        """Return those in what a target takes over of its source.

        Raises:
            LayoutError: there are none.
        """
        source = taken_over(common).get("optimizer")
        parts = [source]
        if isinstance(source, Pairs) and source and all(isinstance(key, int) for key, _ in source):
            parts = [value for _, value in source]
        found = [_text_fields(part) for part in parts]
        groups = [_text_fields(group) for each in found for group in _listed(each.get("param_groups"))]
        steps = [step for each in found if isinstance(step := each.get("step"), int | float)]
        if not steps or not groups or any(group.get("wd_mult") not in (0, 1) for group in groups):
            raise LayoutError(
                "its optimizer state cannot be written: the source does not tell the step and the groups with and "
                "without weight decay, as Megatron's own checkpoints do. Leave it out: "
                f"{option('select', 'weights-only')}"
            )
        return cls(tuple(groups), steps[0])

    def group(self, *, decays: bool, is_expert: bool) -> dict[str, object]:
        """Return the settings of a group: the source's, or those of its other parameters alike.

        Raises:
            LayoutError: the source has no such group.
        """
        alike = [group for group in self.groups if group["wd_mult"] == int(decays)]
        if not alike:
            raise LayoutError(f"the source's optimizer has no group with wd_mult {int(decays)}")
        exact = (group for group in alike if bool(group.get("is_expert_parallel")) is is_expert)
        return {**next(exact, alike[0]), "is_expert_parallel": is_expert}


def optimizer_tree(parameters: Sequence[OptimizedParameter], common: bytes) -> object:
    """Return the optimizer of a rank with these parameters.

    Raises:
        LayoutError: the source does not tell what an optimizer needs.
    """
    settings = OptimizerSettings.of(common)
    dense = [each for each in parameters if not each.is_expert]
    of_experts = [each for each in parameters if each.is_expert]
    made = [_optimizer(some, settings) for some in (dense, of_experts) if some]
    return made if len(made) > 1 else made[0]


def _optimizer(parameters: Sequence[OptimizedParameter], settings: OptimizerSettings) -> dict[str, object]:
    state: dict[int, dict[str, object]] = {}
    groups, masters = [], []
    for decays in (True, False):
        members = [each for each in parameters if each.decays is decays]
        if not members:
            continue
        group = settings.group(decays=decays, is_expert=members[0].is_expert)
        numbers = list(range(len(state), len(state) + len(members)))
        groups.append({**group, "step": settings.step, "params": numbers})
        masters.append([each.states[MASTER] for each in members if MASTER in each.states])
        for number, each in zip(numbers, members, strict=True):
            state[number] = {**{slot: each.states[slot] for slot in MOMENTS}, "step": float(settings.step)}
    inner: dict[str, object] = {"state": state, "param_groups": groups}
    return {"optimizer": inner, "fp32_from_fp16_params": masters} if any(masters) else inner


def _text_fields(value: object) -> dict[str, object]:
    return {key: each for key, each in value if isinstance(key, str)} if isinstance(value, Pairs) else {}


def _listed(value: object) -> Iterator[object]:
    yield from value if isinstance(value, list) else ()
