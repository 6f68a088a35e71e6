"""A last checkpoint when devices fail: the contract of MindX's `mindx_elastic.torch_exception_module`, without MindX.

Needs the standard library only; see `reshard.core.mindspore_api.elastic`.
"""

from reshard.core.mindspore_api.elastic import ExceptionHandler, exception_checkpoint, regular_iteration

__all__ = ["ExceptionHandler", "exception_checkpoint", "regular_iteration"]
