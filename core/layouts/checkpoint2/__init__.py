"""MindFormers' Checkpoint 2.0: iterations of model and optimizer files, with metadata and a tracker."""
