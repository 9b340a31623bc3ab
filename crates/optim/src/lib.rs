//! AdamW with split fp32 masters, gradient norms and learning-rate schedules
