"""What messages call the options of a source."""

from reshard.core.runtime.option_names import options_of_side, source_option


def test_a_comparison_has_the_options_of_a_source_twice() -> None:
    assert source_option("source-strategy") == "--source-strategy"
    with options_of_side("a"):
        assert source_option("source-strategy") == "--strategy-a"
        with options_of_side("b"):
            assert source_option("step") == "--step-b"
        assert source_option("integrated-save") == "--integrated-save-a"
    assert source_option("decrypt-key") == "--decrypt-key"
