from reshard import mindspore


def test_settings_with_which_scripts_begin_are_accepted() -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE, device_target="Ascend", device_id=3, max_device_memory="30GB")
    assert [mindspore.get_context(key) for key in ("mode", "device_target", "max_device_memory")] == [
        0,
        "Ascend",
        "30GB",
    ]
    mindspore.context.set_context(mode=mindspore.context.PYNATIVE_MODE)
    assert mindspore.get_context("mode") == 1
    mindspore.set_device("CPU")
    assert (mindspore.get_context("device_target"), mindspore.get_context("device_id")) == ("CPU", 0)


def test_settings_of_parallel_training_are_accepted_and_forgotten() -> None:
    mindspore.set_auto_parallel_context(parallel_mode="semi_auto_parallel", strategy_ckpt_save_file="a.ckpt")
    assert mindspore.get_auto_parallel_context("parallel_mode") == "semi_auto_parallel"
    mindspore.reset_auto_parallel_context()
    assert mindspore.context.get_auto_parallel_context("parallel_mode") == "stand_alone"
    assert mindspore.get_auto_parallel_context("strategy_ckpt_save_file") == ""
