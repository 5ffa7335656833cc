"""`make demo`: a packaged 135M chat model learns sums from `trl sft` on two processes."""
