"""Who asks, and what they may do: principals, rights, and the policy that judges. docs/reference/rights.md."""
