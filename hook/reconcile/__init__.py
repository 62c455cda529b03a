"""Repairs what hooks could not do: a survey of the node, a plan, and its actions."""
