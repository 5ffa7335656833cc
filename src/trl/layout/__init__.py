"""Who holds what, as integers: topology, the batch plan, the order of rows, seeds. Standard library only."""
