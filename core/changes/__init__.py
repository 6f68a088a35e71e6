"""Changes to parameters that a user declares: names, shapes, dtypes and selections, by rules, steps and presets."""
