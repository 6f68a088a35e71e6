"""What a conversion writes of itself beside a target, as far as it holds a plan: the plan and its catalog."""
