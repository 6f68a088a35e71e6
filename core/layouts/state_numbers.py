"""Numbers of a training's state that a layout keeps beside the tensors, such as the global step."""

Number = int | float | None
