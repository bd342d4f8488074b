"""How fast is it, next to what?  Every figure stands beside a peer or a raw loop measured in the same run."""
