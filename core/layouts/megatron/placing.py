"""Where each tensor of each rank's file belongs in the whole model."""

import re
from collections.abc import Iterator, Sequence

from reshard.core.errors import CatalogError, LayoutError, raise_problems
from reshard.core.files.torch_views import StoredTensor, cut_out, reshaped
from reshard.core.layouts.megatron.args import MegatronArgs
from reshard.core.layouts.megatron.cuts import (
    Cut,
    ModelRank,
    Part,
    Traits,
    cut_of,
    placed_part,
    stacked_shape,
)
from reshard.core.layouts.megatron.names import RankPosition
from reshard.core.layouts.megatron.numbering import division_of, layer_numbers
from reshard.core.layouts.megatron.rank_file import RankFile, Tensors
from reshard.core.layouts.megatron.tensor_names import EMBEDDING, EXPERT, EXPERTS_SECOND, LAYER, OUTPUT_LAYER
from reshard.core.layouts.placed_shards import PlacedShard
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.tensor.slices import Shape

_OF_EXPERTS = re.compile(r".*\.mlp\.experts\..*", re.ASCII | re.DOTALL)
_FIRST = re.compile(r"(.*\.)linear_fc1\.weight(\d*)", re.ASCII)
_STACKED_FIRST = ".mlp.experts.weight1"
_END = re.compile(r"(?:decoder\.)?final_(?:layer)?norm\.weight|output_layer\.weight", re.ASCII)
_LATENT = ".self_attention.linear_kv_up_proj.weight"
_QUERY_DOWN, _KEY_VALUE_DOWN = ".self_attention.linear_q_down_proj.weight", ".self_attention.linear_kv_down_proj.weight"
_OUTPUT = ".self_attention.linear_proj.weight"
_QUERY_NORMS = (".self_attention.q_layernorm.weight", ".self_attention.linear_q_up_proj.layer_norm_weight")
_MAX_LISTED = 8


class PlacedTensor(Record):
    """A tensor of a rank's file: its name in the whole model, and which part of it it is.

    Attributes:
        local: its name in the file.
        stored_shape: its shape in the file.
    """

    name: str
    local: str
    stored_shape: Shape
    part: Part

    def shards(self, stored: StoredTensor) -> Iterator[PlacedShard]:
        """Yield the shards of a tensor of the file that is cut as this one: it, or a state of its optimizer."""
        seen = reshaped(stored, self.part.shape)
        for piece in self.part.pieces:
            yield PlacedShard(self.name, self.part.whole, piece.box, cut_out(seen, piece.local))


def model_rank(args: MegatronArgs, position: RankPosition) -> ModelRank:
    """Return a rank's place in tensor and expert parallelism.

    With fewer expert tensor-parallel ranks than tensor-parallel ones, these take turns.
    """
    tensor, size = position.tensor, args.tensor_size
    if args.experts_over_tensor:
        return ModelRank(tensor, size, position.expert * size + tensor, args.expert_size * size)
    expert_tensor = tensor % args.expert_tensor_size
    return ModelRank(tensor, size, position.expert, args.expert_size, expert_tensor, args.expert_tensor_size)


def placed_tensors(rank: RankFile, position: RankPosition) -> tuple[tuple[PlacedTensor, ...], ...]:
    """Return where the tensors of each chunk of a rank's file belong, in the file's order.

    Raises:
        CatalogError: arguments contradict names or shapes, or it is not known how a tensor is cut; lists all.
    """
    args, problems = rank.args, list[str]()
    numbers = layer_numbers(division_of(args, len(rank.chunks)))
    place = model_rank(args, position)
    found = []
    for chunk, tensors in enumerate(rank.chunks):
        layers = numbers[position.pipeline, chunk]
        problems += _layer_problems(args, layers, tensors, chunk if len(rank.chunks) > 1 else None)
        problems += _end_problems(args, position, chunk, len(rank.chunks), tensors)
        problems += _expert_problems(args, place, tensors)
        traits = _traits(args, tensors, problems)
        placed = []
        if not problems:
            for name, stored in tensors.items():
                try:
                    placed.append(_placed(args, place, layers, traits, name, stored.shape))
                except LayoutError as error:
                    problems.append(f"{name!r}: {error.marked}")
        problems += [problem for each in placed for problem in _size_problems(args, each)]
        found.append(tuple(placed))
    raise_problems(CatalogError, f"{rank.file.location}: its tensors are not what its 'args' say", problems)
    return tuple(found)


def _placed(
    args: MegatronArgs,
    rank: ModelRank,
    layers: Sequence[int | None],
    traits: Traits,
    name: str,
    shape: Shape,
) -> PlacedTensor:
    cut = cut_of(name, traits)
    if cut is None:
        if args.tensor_size > 1 or _OF_EXPERTS.fullmatch(name):
            raise LayoutError("reshard does not know how Megatron cuts it among ranks")
        cut = Cut()
    experts = (args.experts or 0) // rank.expert_size
    seen = stacked_shape(name, shape, experts) if cut.stacked else shape
    whole = _whole_name(name, layers, rank.expert_rank * experts)
    if whole == OUTPUT_LAYER and args.untied is False:
        whole = EMBEDDING  # the last stage's copy of it
    return PlacedTensor(whole, name, shape, placed_part(cut, seen, rank))


def _whole_name(name: str, layers: Sequence[int | None], first_expert: int) -> str:
    """The name in the whole model, with its own numbers of layers and experts."""
    if layer := LAYER.fullmatch(name):
        name = f"{layer[1]}{layers[int(layer[2])]}.{layer[3]}"
    if expert := EXPERT.fullmatch(name):
        name = f"{expert[1]}{first_expert + int(expert[2])}{expert[3]}"
    return name


def _layer_problems(
    args: MegatronArgs, layers: Sequence[int | None], tensors: Tensors, chunk: int | None
) -> Iterator[str]:
    """The layers of a chunk must be those that the arguments give it."""
    there = sorted({int(match[2]) for name in tensors if (match := LAYER.fullmatch(name))})
    expected = [number for number, layer in enumerate(layers) if layer is not None]
    if there == expected:
        return
    where = "" if chunk is None else f" of 'model{chunk}'"
    own = f", and {listed(args.own_placements)} is set, which reshard does not follow" if args.own_placements else ""
    yield (
        f"the layers{where} are numbered {_numbers(there)}, by its arguments {_numbers(expected)}{own}: save it again "
        "with layers divided evenly, or with num_layer_list or decoder_first_pipeline_num_layers"
    )


def _end_problems(
    args: MegatronArgs, position: RankPosition, chunk: int, chunks: int, tensors: Tensors
) -> Iterator[str]:
    """What follows the last layer must be where that is: only this shows another order of chunks."""
    last = (0, 1) if args.mirrors else (args.pipeline_size - 1, chunks - 1)
    end = next((name for name in tensors if _END.fullmatch(name)), None)
    if end is not None and (position.pipeline, chunk) != last:
        order = f"schedules_method {args.schedule}" if args.schedule else "its arguments"
        yield (
            f"{end!r} is in chunk {chunk} of stage {position.pipeline}, by {order} the last layers are in chunk "
            f"{last[1]} of stage {last[0]}"
        )


def _expert_problems(args: MegatronArgs, rank: ModelRank, tensors: Tensors) -> Iterator[str]:
    """The experts of each layer must be those that the arguments give to the rank."""
    names = [name for name in tensors if _OF_EXPERTS.fullmatch(name)]
    if not names:
        return
    if not args.experts or args.experts % rank.expert_size:
        yield f"{names[0]!r}: {args.experts or 'no'} experts cannot be divided among {rank.expert_size} ranks"
        return
    found: dict[tuple[str, str], set[int]] = {}
    for name in names:
        if match := EXPERT.fullmatch(name):
            found.setdefault((match[1], match[3]), set()).add(int(match[2]))
    expected = set(range(args.experts // rank.expert_size))
    for (before, after), numbers in found.items():
        if numbers != expected:
            yield f"{before}*{after}: has the experts {_numbers(sorted(numbers))}, by its arguments {len(expected)}"
            return


def _traits(args: MegatronArgs, tensors: Tensors, problems: list[str]) -> Traits:
    latent = any(name.endswith(_LATENT) for name in tensors)
    if args.tensor_size > 1 and not latent and any(".linear_qkv." in name for name in tensors):
        groups = args.groups
        if groups is None or groups % args.tensor_size:
            problems.append(
                f"{'an unknown number of' if groups is None else groups} groups of queries on {args.tensor_size} "
                "tensor-parallel ranks: how attention is cut then is not known; save it again with fewer ranks"
            )
    return Traits(
        _is_gated(args, tensors, problems),
        latent,
        _cuts_down(args, tensors, problems),
        not latent and _has_joint_norms(args, tensors),
    )


def _has_joint_norms(args: MegatronArgs, tensors: Tensors) -> bool:
    """Whether queries are normalized over all heads of a rank together, by the sizes of norms."""
    of_rank = (args.heads or 0) // args.tensor_size
    norms = (name for name in tensors if name.endswith(_QUERY_NORMS[0]))
    # of one head nothing tells the two apart
    return of_rank > 1 and any(
        (out := tensors.get(f"{name.removesuffix(_QUERY_NORMS[0])}{_OUTPUT}")) is not None
        and tensors[name].shape == out.shape[1:]
        for name in norms
    )


def _is_gated(args: MegatronArgs, tensors: Tensors, problems: list[str]) -> bool:
    """Whether the first matrices of MLPs have twice the size that the second ones take."""
    found: dict[bool, str] = {}
    for name, stored in tensors.items():
        is_stacked = name.endswith(_STACKED_FIRST)
        if is_stacked:
            follows = f"{name.removesuffix('1')}2"
        elif match := _FIRST.fullmatch(name):
            follows = f"{match[1]}linear_fc2.weight{match[2]}"
        else:
            continue
        second = tensors.get(follows)
        if second is None or len(stored.shape) != 2 or len(second.shape) != 2:
            problems.append(f"{name!r}: there is no matrix {follows!r} to follow it")
            continue
        made, taken = (stored.shape[1], second.shape[0]) if is_stacked else (stored.shape[0], second.shape[1])
        if made not in (taken, 2 * taken):
            problems.append(f"{name!r} makes {made} numbers, the matrix that follows takes {taken}")
        else:
            found.setdefault(made == 2 * taken, name)
    if args.gated is not None and (not args.gated) in found:
        problems.append(f"{found[not args.gated]!r} is {'not ' if args.gated else ''}gated, swiglu is {args.gated}")
    elif len(found) > 1:
        problems.append(f"{found[True]!r} is gated, {found[False]!r} is not")
    return True in found


def _cuts_down(args: MegatronArgs, tensors: Tensors, problems: list[str]) -> bool:
    """Whether the down-projections of multi-latent attention are cut, by the sizes of the norms behind them."""
    found = set()
    for name, stored in tensors.items():
        if name.endswith(_QUERY_DOWN):
            ranks = _query_rank(args, tensors, name.removesuffix(_QUERY_DOWN))
            if stored.shape and ranks in (stored.shape[0], stored.shape[0] * args.tensor_size):
                found.add(stored.shape[0] != ranks)
                continue
            problems.append(f"{name!r}: its shape {list(stored.shape)} does not suit a rank of {ranks}")
        elif name.endswith(_KEY_VALUE_DOWN):
            up = tensors.get(name.removesuffix(_KEY_VALUE_DOWN) + _LATENT)
            # it makes the positions' part of keys as well
            if stored.shape and up is not None and len(up.shape) == 2:
                found.add(stored.shape[0] <= up.shape[1])
                continue
            problems.append(f"{name!r}: it has no projection to follow it")
    if len(found) > 1:
        problems.append("of the down-projections of attention, some are cut and some are not")
    return args.tensor_size > 1 and True in found


def _query_rank(args: MegatronArgs, tensors: Tensors, layer: str) -> int | None:
    """The length of what a layer compresses queries to, as the norm behind it has it."""
    for norm in _QUERY_NORMS:
        found = tensors.get(layer + norm)
        if found is not None and len(found.shape) == 1:
            return found.shape[0]
    return args.query_rank


def _size_problems(args: MegatronArgs, placed: PlacedTensor) -> Iterator[str]:
    """Sizes of whole tensors that arguments name: with a wrong number of ranks they differ."""
    whole, name = placed.part.whole, placed.name
    expected: list[tuple[str, int | None, int]] = []
    if name in (EMBEDDING, OUTPUT_LAYER) and len(whole) == 2:
        expected += [("padded_vocab_size", args.padded_vocabulary, whole[0]), ("hidden_size", args.hidden, whole[1])]
        if args.vocabulary is not None and whole[0] < args.vocabulary:
            yield f"{placed.local!r}: has {whole[0]} rows on all ranks together, vocab_size is {args.vocabulary}"
    elif name.endswith(".mlp.linear_fc2.weight") and len(whole) == 2:
        expected.append(("ffn_hidden_size", args.ffn, whole[1]))
    elif EXPERTS_SECOND.fullmatch(name) and len(whole) > 1:
        expected.append(("moe_ffn_hidden_size", args.moe_ffn or args.ffn, whole[1]))
    elif name.endswith(".router.weight") and whole:
        expected.append(("num_experts", args.experts, whole[0]))
    for argument, said, found in expected:
        if said is not None and said != found:
            yield f"{placed.local!r}: has the shape {list(whole)} on all ranks together, {argument} is {said}"


def _numbers(numbers: Sequence[int]) -> str:
    return listed(list(map(str, numbers)), _MAX_LISTED) if numbers else "none"
