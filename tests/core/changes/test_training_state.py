"""Names of training state."""

import pytest

from reshard.core.changes.training_state import StateKind, is_training_state, state_kind

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


LAYER = "decoder.layers.3."


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            StateKind.ROUTING,
            [
                *(f"{LAYER}mlp.router.{name}" for name in ("fi_accu", "expert_load", "fi_parameter", "ga_steps")),
                *(f"{LAYER}mlp.{name}" for name in ("expert_load_history", "expert_load_history_cnt")),
                *(f"{LAYER}mlp.experts.num_tokens_per_expert", f"{LAYER}self_attention.core_attention.max_logits_val"),
                *(
                    f"model.layers.3.feed_forward.routed_experts.router.router.{name}"
                    for name in ("pi_cache", "fi_cache")
                ),
                "model.layers.3.feed_forward.routed_experts.router.router.cumsum_value",
            ],
        ),
        (StateKind.DROPOUT, [f"{LAYER}hidden_states_dropout.seed", "embedding.embedding_dropout.offset"]),
        (StateKind.CACHE, ["model.layers.0.attention.key_cache", "model.layers.0.attention.value_cache_grad"]),
        (StateKind.EXPERT_ORDER, [f"{LAYER}mlp.expert_mapping"]),
        (StateKind.LOSS_SCALE, ["scale_window", "scale_window_up_count", "list_index"]),
        (
            StateKind.OPTIMIZER,
            [
                *(f"main_param.{LAYER}mlp.linear_fc2.weight", "matrix_g_inv_12", "step.w", "lr_scheduler.last_lr"),
                *("optim.state.w.exp_avg", "optim.state.w.step", "optim.param_groups.0.lr", "app.optim.state.w.step"),
                *("optimizer.state.exp_avg.decoder.weight", "chained_0.optimizer.state.fp32_param.w"),
                *("training.state.w.exp_avg_sq", "state.0.momentum_buffer"),
            ],
        ),
        (
            None,
            [
                *(f"{LAYER}mlp.expert_bias", f"{LAYER}mlp.router.tid2eid", "state.w", "my.state.step", "w.exp_avg"),
                *("optim.weight", "my_optim.state.w", "step.other", "state_dropout.weight", "matrix_a_inv_1.w"),
            ],
        ),
    ],
)
def test_training_state_is_known_by_its_kind(kind: StateKind | None, names: list[str]) -> None:
    assert {name: state_kind(name, {*names, "w"}) for name in names} == dict.fromkeys(names, kind)
