"""What of torch and transformers runs under the policies: ``make zoo`` writes docs/compatibility.md."""
