"""The engine: an algorithm says what a row's loss is, the engine carries out the contract around it."""
