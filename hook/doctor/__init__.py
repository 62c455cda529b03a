"""What checks a node and suggests fixes."""
