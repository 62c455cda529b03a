"""What puts right what hooks could not do: a look at all of the node, a plan, and its actions."""
