"""Where does it wait?  One contract, symmetrical backends."""
