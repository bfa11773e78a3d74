"""The kinds of proof: what each makes of a credential, which is a principal, or nobody."""
