"""How options are declared, checked and named, whatever they are about."""
