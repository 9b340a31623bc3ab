//! `config.json` in and out, presets, and every refusal with its text.

use megatrain_layers::{ModelConfig, RopeScaling, UnitKind, preset_names, units};
use serde_json::{Value, json};

fn read(json: Value) -> Result<ModelConfig, String> {
    ModelConfig::from_hf(&json).map_err(|e| e.to_string())
}

/// A good configuration with some keys replaced.
fn with(changes: Value) -> Value {
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 259,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "max_position_embeddings": 512, "torch_dtype": "bfloat16",
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn bad_configurations_are_refused_by_name() {
    #[rustfmt::skip]
    let cases = [
        (json!([1]), "the model configuration is not a JSON object: a Hugging Face config.json is expected"),
        (json!({}), "the model configuration has neither `model_type` nor `architectures`; known model types: llama, mistral, qwen2, qwen3"),
        (json!({"model_type": "gpt2"}), "model_type `gpt2` is not supported; known: llama, mistral, qwen2, qwen3"),
        (json!({"architectures": ["GPT2LMHeadModel"]}), "architectures `GPT2LMHeadModel` is not supported; known: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"),
        (with(json!({"architectures": ["LlamaForSequenceClassification"]})), "architectures `LlamaForSequenceClassification` is not supported; known: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"),
        (with(json!({"architectures": "LlamaForCausalLM"})), "`architectures` is \"LlamaForCausalLM\", expected a list of strings"),
        (with(json!({"model_type": 7})), "`model_type` is 7, expected a string"),
        (with(json!({"hidden_size": "64"})), "`hidden_size` is \"64\", expected a whole number"),
        (with(json!({"hidden_size": -64})), "`hidden_size` is -64, expected a whole number"),
        (with(json!({"hidden_size": 64.5})), "`hidden_size` is 64.5, expected a whole number"),
        (with(json!({"hidden_size": 0})), "`hidden_size` is 0, expected a whole number from 1 to 1048576"),
        (with(json!({"hidden_size": 66})), "`num_attention_heads` is 4, expected a divisor of hidden_size = 66, or head_dim to be given"),
        (with(json!({"num_hidden_layers": 0})), "`num_hidden_layers` is 0, expected a whole number from 1 to 65536"),
        (with(json!({"num_attention_heads": 0})), "`num_attention_heads` is 0, expected a divisor of hidden_size = 64, or head_dim to be given"),
        (with(json!({"num_attention_heads": 0, "head_dim": 16})), "`num_attention_heads` is 0, expected a whole number from 1 to 1048576"),
        (with(json!({"num_key_value_heads": 3})), "`num_key_value_heads` is 3, expected a divisor of num_attention_heads = 4"),
        (with(json!({"num_key_value_heads": 0})), "`num_key_value_heads` is 0, expected a whole number from 1 to 1048576"),
        (with(json!({"head_dim": 12})), "`head_dim` is 12, expected a multiple of 8"),
        (with(json!({"head_dim": 1048576})), "`num_attention_heads` is 4, expected at most 1048576 elements in all heads"),
        (with(json!({"vocab_size": 2147483648u64})), "`vocab_size` is 2147483648, expected a whole number from 1 to 2147483647"),
        (with(json!({"intermediate_size": 1u64 << 40})), "`intermediate_size` is 1099511627776, expected a whole number from 1 to 1048576"),
        (with(json!({"rms_norm_eps": 0.0})), "`rms_norm_eps` is 0, expected a number between 0 and 1, e.g. 1e-5"),
        (with(json!({"rms_norm_eps": "small"})), "`rms_norm_eps` is \"small\", expected a number"),
        (with(json!({"initializer_range": -0.1})), "`initializer_range` is -0.1, expected a number that is not negative"),
        (with(json!({"tie_word_embeddings": 1})), "`tie_word_embeddings` is 1, expected true or false"),
        (with(json!({"hidden_act": "gelu"})), "`hidden_act` = \"gelu\" is not supported: only silu or swish is"),
        (with(json!({"pretraining_tp": 2})), "`pretraining_tp` = 2 is not supported: only 1 is"),
        (with(json!({"attention_dropout": 0.1})), "`attention_dropout` = 0.1 is not supported: attention has no dropout; set it to 0.0"),
        (with(json!({"partial_rotary_factor": 0.5})), "`partial_rotary_factor` = 0.5 is not supported: rotary positions cover the whole head (1.0)"),
        (with(json!({"quantization_config": {"bits": 4}})), "`quantization_config` = {\"bits\":4} is not supported: training needs unquantized weights (f32, bf16 or f16)"),
        (with(json!({"layer_types": ["full_attention", "sliding_attention"]})), "`layer_types` = [\"full_attention\",\"sliding_attention\"] is not supported: this family has full attention only"),
        (with(json!({"layer_types": ["linear_attention"]})), "`layer_types` = [\"linear_attention\"] is not supported: known: full_attention, sliding_attention"),
        (with(json!({"rope_theta": 0})), "`rope_theta` is 0, expected a number above 0"),
        (with(json!({"rope_scaling": "linear"})), "`rope_scaling` is \"linear\", expected an object"),
        (with(json!({"rope_scaling": {"type": "yarn", "factor": 4.0}})), "`rope_scaling.type` = \"yarn\" is not supported: known: default, linear, llama3"),
        (with(json!({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}})), "`rope_parameters.rope_type` = \"dynamic\" is not supported: known: default, linear, llama3"),
        (with(json!({"rope_scaling": {"rope_type": "linear"}})), "`rope_scaling.factor` is missing, expected a number above 0"),
        (with(json!({"rope_scaling": {"rope_type": "linear", "factor": 0}})), "`rope_scaling.factor` is 0, expected a number above 0"),
        (with(json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}})), "`rope_scaling.high_freq_factor` is missing, expected a number above 0"),
        (with(json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}})), "`rope_scaling.high_freq_factor` is 4.0, expected a number above low_freq_factor"),
        (with(json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}})), "`rope_parameters.full_attention` = {\"rope_theta\":10000.0} is not supported: all layers share one set of rotary frequencies"),
        (with(json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}})), "`rope_parameters.partial_rotary_factor` = 0.25 is not supported: rotary positions cover the whole head (1.0)"),
        (json!({"model_type": "mistral", "attention_bias": true}), "`attention_bias` = true is not supported: this family has no biases"),
        (json!({"model_type": "mistral", "sliding_window": 0}), "`sliding_window` is 0, expected null or a whole number of at least 1"),
        (json!({"model_type": "mistral", "layer_types": ["sliding_attention"]}), "`layer_types` = [\"sliding_attention\"] is not supported: in this family all layers share sliding_window"),
        (json!({"model_type": "qwen2", "mlp_bias": true}), "`mlp_bias` = true is not supported: this family has biases on q, k and v only"),
        (json!({"model_type": "qwen3", "mlp_bias": true}), "`mlp_bias` = true is not supported: this family has biases in attention only"),
    ];
    for (config, expected) in cases {
        assert_eq!(read(config.clone()).expect_err(&config.to_string()), expected, "{config}");
    }
}

#[test]
fn absent_keys_mean_what_transformers_says() {
    let llama = read(json!({"model_type": "llama"})).unwrap();
    assert_eq!(llama.params(), 6_738_415_616, "an empty llama configuration is Llama 2 7B");
    assert_eq!((llama.kv_heads, llama.head_dim, llama.tied, llama.rope.theta), (32, 128, false, 1e4));
    let mistral = read(json!({"model_type": "mistral"})).unwrap();
    assert_eq!((mistral.kv_heads, mistral.sliding_window, mistral.rms_eps), (8, Some(4096), 1e-6));
    let ungrouped =
        read(json!({"model_type": "mistral", "num_key_value_heads": null, "sliding_window": null})).unwrap();
    assert_eq!((ungrouped.kv_heads, ungrouped.sliding_window), (32, None));
    let qwen2 = read(json!({"model_type": "qwen2"})).unwrap();
    assert_eq!((qwen2.qkv_bias, qwen2.o_bias, qwen2.sliding_window, qwen2.vocab), (true, false, None, 151_936));
    let qwen3 = read(json!({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16})).unwrap_err();
    assert!(qwen3.contains("num_key_value_heads"), "32 key heads are the default: {qwen3}");
    let qwen3 = read(json!({"model_type": "qwen3", "hidden_size": 1024})).unwrap();
    assert_eq!((qwen3.head_dim, qwen3.qk_norm, qwen3.qkv_bias), (128, true, false));
    let by_architecture = read(json!({"architectures": ["Qwen2ForCausalLM"]})).unwrap();
    assert_eq!(by_architecture, qwen2);
}

#[test]
fn both_spellings_of_rope_are_read() {
    let scaling = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"});
    let old = read(with(json!({"rope_theta": 5e5, "rope_scaling": scaling}))).unwrap();
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = json!(5e5);
    let new = read(with(json!({"rope_parameters": parameters}))).unwrap();
    assert_eq!(old, new);
    assert_eq!(old.rope, ModelConfig::preset("llama-3.1-8b").unwrap().rope);
    let linear = read(with(json!({"rope_scaling": {"type": "linear", "factor": 2}}))).unwrap();
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    let plain =
        read(with(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, "rope_scaling": null})));
    assert_eq!((plain.as_ref().unwrap().rope.theta, plain.unwrap().rope.scaling), (77.0, RopeScaling::Default));
    let outside = read(with(json!({"rope_parameters": {"rope_type": "default"}, "rope_theta": 88.0}))).unwrap();
    assert_eq!(outside.rope.theta, 88.0);
}

#[test]
fn windows_are_known_and_refused_only_where_they_matter() {
    let mut mistral = ModelConfig::preset("mistral-7b").unwrap();
    assert_eq!(mistral.check_context(1 << 20), Ok(()));
    mistral.sliding_window = Some(4096);
    assert_eq!(mistral.check_context(4096), Ok(()));
    assert_eq!(
        mistral.check_context(4097).unwrap_err().to_string(),
        "`sliding_window` = 4096 is not supported: sequences of 4097 tokens would need windowed attention; use at most 4096 tokens"
    );
    let qwen = |changes: Value| {
        let mut config = json!({"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 100});
        changes.as_object().unwrap().iter().for_each(|(k, v)| config[k] = v.clone());
        read(config).unwrap().sliding_window
    };
    assert_eq!(qwen(json!({})), None);
    assert_eq!(qwen(json!({"use_sliding_window": true})), None, "layers before max_window_layers = 28 see everything");
    assert_eq!(qwen(json!({"use_sliding_window": true, "max_window_layers": 3})), Some(100));
    assert_eq!(qwen(json!({"use_sliding_window": true, "layer_types": ["full_attention"]})), None);
    assert_eq!(qwen(json!({"use_sliding_window": true, "layer_types": ["sliding_attention"]})), Some(100));
}

#[test]
fn presets_have_their_published_sizes() {
    let sizes = [
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_248_023_552),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
    ];
    for (name, params) in sizes {
        assert_eq!(ModelConfig::preset(name).unwrap().params(), params, "{name}");
    }
    assert_eq!(preset_names().count(), sizes.len() + 1, "every preset but the demo is in the table");
    assert!((1_000_000..3_000_000).contains(&ModelConfig::preset("demo").unwrap().params()));
    assert_eq!(ModelConfig::preset("gpt-5"), None);
}

#[test]
fn what_is_written_reads_back() {
    for name in preset_names() {
        let config = ModelConfig::preset(name).unwrap();
        assert_eq!(config.check(), Ok(()), "{name}");
        assert_eq!(ModelConfig::from_hf(&config.to_hf()), Ok(config), "{name}");
    }
    let mistral = ModelConfig { sliding_window: Some(4096), ..ModelConfig::preset("mistral-7b").unwrap() };
    let qwen = ModelConfig { sliding_window: Some(32), ..ModelConfig::preset("qwen3-0.6b").unwrap() };
    let biases = ModelConfig {
        qkv_bias: true,
        o_bias: true,
        mlp_bias: true,
        rope: read(with(json!({"rope_scaling": {"type": "linear", "factor": 2}}))).unwrap().rope,
        ..ModelConfig::preset("demo").unwrap()
    };
    for config in [mistral, qwen, biases] {
        assert_eq!(ModelConfig::from_hf(&config.to_hf()), Ok(config));
    }
    let demo = ModelConfig::preset("demo").unwrap().to_hf();
    assert_eq!((&demo["rms_norm_eps"], &demo["architectures"][0]), (&json!(1e-5), &json!("LlamaForCausalLM")));
}

#[test]
fn units_stand_in_forward_order() {
    let tied = units(&ModelConfig::preset("qwen2.5-0.5b").unwrap());
    assert_eq!((tied.len(), tied[0].kind, tied[24].kind), (25, UnitKind::EmbeddingHead, UnitKind::Block(23)));
    let untied = units(&ModelConfig::preset("qwen3-8b").unwrap());
    assert_eq!((untied.len(), untied[0].kind, untied[37].kind), (38, UnitKind::Embedding, UnitKind::Head));
    for unit in tied.iter().chain(&untied) {
        assert_eq!(unit.layout.tensors.len(), unit.inits.len());
        assert!(unit.layout.tensors.iter().all(|t| t.decay == (t.shape.rank() > 1)), "decay on matrices only");
        let name = |i: usize| unit.layout.tensors[i].name.as_str();
        let head_is_there = !matches!(unit.kind, UnitKind::Embedding | UnitKind::Block(_));
        assert_eq!(unit.kind.final_norm().map(name), head_is_there.then_some("model.norm.weight"));
        let projection = if unit.kind == UnitKind::Head { "lm_head.weight" } else { "model.embed_tokens.weight" };
        assert_eq!(unit.kind.projection().map(name), head_is_there.then_some(projection));
    }
}

/// By hand for the demo: `6 * (4 blocks + vocabulary)` weights, and attention over 128.5 keys on average.
#[test]
fn flops_per_token_count_products_and_attention() {
    let demo = ModelConfig::preset("demo").unwrap();
    let block = 192 * 192 * 2 + 192 * 64 * 2 + 3 * 192 * 512;
    let products = 6 * (4 * block + 192 * 264);
    let attention = 3.0 * 4.0 * 4.0 * 192.0 * 128.5;
    assert_eq!(demo.flops_per_token(256), products as f64 + attention);
}
