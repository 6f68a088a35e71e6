"""Object stores, through one client: obstore."""
