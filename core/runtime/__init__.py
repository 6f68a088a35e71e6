"""What a process brings along, whatever it works on."""
