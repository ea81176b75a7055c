"""The verify service: owns the target model, its KV pages and the verification of drafted trees."""
