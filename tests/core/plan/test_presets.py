"""Names of training state."""

import pytest

from reshard.core.plan.presets import is_training_state

NAMES = {"w", "own", "linear.weight", "linear.w", "mu_w", "mu", "moments.w", "accum.w"}


@pytest.mark.parametrize(
    ("name", "training"),
    [
        *((name, True) for name in ("adam_m.w", "adam_v.backbone.w", "moment1.w", "moments.w", "vhat.w", "lamb_m.w")),
        *((name, True) for name in ("accu_grads.w", "accu_gradsw", "accum.w", "exp_avg.w", "exp_avg_sq_row_w", "mu_w")),
        *((name, True) for name in ("global_step", "learning_rate", "learning_rate_group_1", "beta1_power")),
        *(
            (name, True)
            for name in ("scale_sense", "loss_scale", "current_iterator_step", "epoch_num", "matrix_a_inv_3")
        ),
        *((name, True) for name in ("linear.w", "last_overflow_iterator_step")),
        *((name, True) for name in ("step_t", "exp_inf.w", "ax.w", "ax_.w", "mu_product_w")),
        *(
            (name, False)
            for name in (
                "w",
                "linear.weight",
                "ax.bias",
                "mu",
                "stat.mean",
                "moment.weight",
                "accum.bias",
                "x.adam_m.w",
            )
        ),
        *((name, True) for name in ("muon_m.w", "muon_m.placeholder.0", "adam_m.placeholder.3", "accu_grads.w")),
        *((name, True) for name in ("exp_avg_insta_row_w", "exp_avg_insta_col_w", "ga_steps", "w.tokens_per_expert")),
        *((name, True) for name in ("decoder.layers.1.mlp.router.global_tokens_per_expert", "x._device_local_loss")),
        *((name, False) for name in ("decoder.layers.1.mlp.router.expert_bias", "mlp.router.tid2eid", "x.ga_steps.w")),
        *((name, False) for name in ("exp_avg_insta_row_x", "my_ga_steps")),
        *((name, False) for name in ("global_step.w", "matrix_a_inv_x", "learning_rates")),
    ],
)
def test_what_only_training_needs(name: str, training: bool) -> None:
    assert is_training_state(name, NAMES | {name}) is training
