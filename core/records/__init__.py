"""The plan file that a conversion leaves beside its target: the plan, with the catalog of its source."""
