"""The commands for people: their options, help and output."""
