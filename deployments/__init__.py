"""The flows as Prefect deploys or serves them."""
