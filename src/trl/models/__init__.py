"""Models: loading, adapters, and the policy, the only place that touches logits."""
