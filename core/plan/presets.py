"""Names of training state: those that MindSpore's optimizers, loss scaling and callbacks give, by its 2.10 source.

`weights-only` drops:

- gradient accumulators, `accu_grads` and a parameter's name: `nn.wrap.cell_wrapper`, `nn.wrap.grad_reducer`,
  `nn.wrap.loss_scale`, `parallel.nn`
- an optimizer's state of a parameter, a prefix, a dot and its name (`nn.optim`, `mint.optim`, `experimental.optim`):
  `adam_m`, `adam_v` (AdamWeightDecay, and MindFormers' AdamW); `moment1`, `moment2`, `vhat` (Adam, LazyAdam, AdaMax);
  `moments` (Momentum, Ftrl, Thor); `lamb_m`, `lamb_v` (Lamb); `exp_avg_sq`, `max_exp_avg_sq` (mint's Adam and AdamW);
  `momentum_buf` (mint's SGD); `accum_update` (Adadelta); `exp_inf` (experimental Adamax); `muon_m` (MindFormers' Muon,
  which also has `muon_m.placeholder.…` and `adam_m.placeholder.…`)
- the same with `exp_avg` (mint's Adam and AdamW, Adafactor), `moment`, `mean_grad`, `mean_square` (RMSProp), `accum`
  (SGD, Adagrad, Adadelta), `stat` (SGD), `linear` (Ftrl), `prev`, `step_size` (Rprop), `ax_`, `ax` (ASGD): layers may
  have these names, too, so only if the rest after the dot is itself a parameter; `linear`, a name of many layers, only
  if that parameter has `moments` as well, since Ftrl gives it both
- `exp_avg_sq_row_…`, `exp_avg_sq_col_…`, `exp_avg_sq_…` (Adafactor), `exp_avg_insta_row_…`, `exp_avg_insta_col_…`
  (CAME), `mu_…`, `eta_…` (ASGD), `mu_product_…` (NAdam): the same, without a dot
- an optimizer's numbers: `global_step`, `learning_rate`, `learning_rate_group_…`, `weight_decay`, `momentum`,
  `beta1_power`, `beta2_power`, `state_step`, `step_t`, `afactor_step`, `cov_step`, `matrix_a_inv_…`,
  `matrix_g_inv_…` (Thor), `fake_param`, `fake_lr` (LARS)
- loss scaling (`nn.wrap.loss_scale`, `amp`, MindFormers): `scale_sense`, `loss_scale`, `scale_value`,
  `current_iterator_step`, `last_overflow_iterator_step`
- MindFormers' counters, by the last component of their names: `tokens_per_expert`, `global_tokens_per_expert`,
  `ga_steps`, `_device_local_loss`; a router's `expert_bias` and `tid2eid` are weights
- what callbacks append: `epoch_num`, `step_num`, `batch_num`, `cur_rank`
"""

import re
from collections.abc import Collection

_STATE = (
    *("accu_grads", "adam_m", "adam_v", "moment1", "moment2", "vhat", "moments", "lamb_m", "lamb_v"),
    *("exp_avg_sq", "max_exp_avg_sq", "momentum_buf", "accum_update", "exp_inf", "muon_m"),
)
_STATE_OR_LAYER = (
    *("exp_avg.", "moment.", "mean_grad.", "mean_square.", "accum.", "stat.", "linear.", "prev.", "step_size.", "ax_."),
    *("ax.", "accu_grads", "exp_avg_sq_row_", "exp_avg_sq_col_", "exp_avg_sq_", "mu_", "eta_", "mu_product_"),
    *("exp_avg_insta_row_", "exp_avg_insta_col_"),
)
_COUNTERS = frozenset({"tokens_per_expert", "global_tokens_per_expert", "ga_steps", "_device_local_loss"})
_NUMBERS = (
    *("global_step", "learning_rate", "weight_decay", "momentum", "beta1_power", "beta2_power"),
    *("state_step", "step_t", "afactor_step", "cov_step", "fake_param", "fake_lr"),
    *("scale_sense", "loss_scale", "scale_value", "current_iterator_step", "last_overflow_iterator_step"),
    *("epoch_num", "step_num", "batch_num", "cur_rank"),
)
_CERTAIN = re.compile(
    rf"({'|'.join(_STATE)})\..+|{'|'.join(_NUMBERS)}|learning_rate_group_.*|matrix_[ag]_inv_\d+", re.DOTALL
)


def is_training_state(name: str, names: Collection[str]) -> bool:
    """True if only training needs the parameter; `names` are all names of the checkpoint."""
    if _CERTAIN.fullmatch(name) or name.rpartition(".")[2] in _COUNTERS:
        return True
    return any(
        name.startswith(prefix)
        and (of := name.removeprefix(prefix)) in names
        and (prefix != "linear." or f"moments.{of}" in names)
        for prefix in _STATE_OR_LAYER
    )
