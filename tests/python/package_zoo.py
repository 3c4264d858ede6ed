"""Models of packages, small, each with an optimizer that is usual for it: test_package_zoo.py.

`MODELS` names each and says which package it is from and how to build a `zoo.Case` of it. The
models are built from their packages' own configurations, with their own initialisation; nothing is
downloaded. poet knows none of the names.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from turns import turn
from zoo import Case

_VOCABULARY = 64


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of a package."""

    package: str  # as PyPI calls it
    build: Callable[[], Case]
    optimizer: str
    unplanned: str = ""  # why no plan is followed; "" where one must be


MODELS: dict[str, Model] = {}
_OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), 1e-3),
    "AdamW, fused": lambda net: torch.optim.AdamW(net.parameters(), 1e-3, fused=True),
    "Adam": lambda net: torch.optim.Adam(net.parameters(), 1e-3, foreach=False),
    "Adam, amsgrad": lambda net: torch.optim.Adam(net.parameters(), 1e-3, amsgrad=True),
    "SGD, momentum": lambda net: torch.optim.SGD(net.parameters(), 0.02, momentum=0.9),
    "SGD, Nesterov, decay": lambda net: torch.optim.SGD(
        net.parameters(), 0.02, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=False
    ),
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters()),
    "Adafactor (transformers)": lambda net: _adafactor(net),
    "RMSprop": lambda net: torch.optim.RMSprop(net.parameters(), 1e-3, momentum=0.9),
    "NAdam": lambda net: torch.optim.NAdam(net.parameters(), 1e-3),
    "RAdam": lambda net: torch.optim.RAdam(net.parameters(), 1e-3, foreach=False),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), 1e-2),
    "Muon and AdamW": lambda net: _muon(net),
}


def _adafactor(net: nn.Module) -> torch.optim.Optimizer:
    from transformers.optimization import Adafactor

    chosen: torch.optim.Optimizer = Adafactor(net.parameters(), warmup_init=True)
    return chosen


class _Both(torch.optim.Optimizer):
    """Two optimizers as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        super().__init__([p for part in parts for g in part.param_groups for p in g["params"]], {})
        self.parts = parts

    def step(self, closure: Any = None) -> None:
        for part in self.parts:
            part.step()


def _muon(net: nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in net.parameters() if p.dim() == 2]
    others = [p for p in net.parameters() if p.dim() != 2]
    return _Both(torch.optim.Muon(matrices, 1e-3), torch.optim.AdamW(others, 1e-3))


def _model(
    name: str, package: str, optimizer: str = "AdamW", unplanned: str = ""
) -> Callable[[Callable[[], tuple[Any, ...]]], None]:
    """Registers a function that gives a network, its loss as a function of a batch, and a batch."""

    def register(parts: Callable[[], tuple[Any, ...]]) -> None:
        def build() -> Case:
            net, loss_of, batch = parts()
            return _case(net, _OPTIMIZERS[optimizer](net), loss_of, batch)

        MODELS[name] = Model(package, build, optimizer, unplanned)

    return register


def _case(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[..., torch.Tensor],
    batch: Sequence[Any],
) -> Case:
    def step(*batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizers = list(optimizer.parts) if isinstance(optimizer, _Both) else [optimizer]
    return Case(step, lambda _: tuple(batch), [net.train()], optimizers)


def _tokens(rows: int = 4, length: int = 32) -> torch.Tensor:
    return torch.randint(3, _VOCABULARY, (rows, length))


def _images(rows: int = 4, size: int = 32, channels: int = 3) -> torch.Tensor:
    return torch.randn(rows, channels, size, size)


def _labels(rows: int = 4, classes: int = 4) -> torch.Tensor:
    return torch.randint(0, classes, (rows,))


# ---------------------------------------------------------------- transformers


def _language_model(config: str, model: str, **words: Any) -> tuple[Any, ...]:
    """A model whose labels are its input."""
    import transformers

    usual = {
        "vocab_size": _VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    net = getattr(transformers, model)(getattr(transformers, config)(**(usual | words)))
    return net, lambda x: net(input_ids=x, labels=x).loss, (_tokens(),)


def _image_model(config: str, model: str, size: int = 32, **words: Any) -> tuple[Any, ...]:
    """A classifier of pictures."""
    import transformers

    net = getattr(transformers, model)(
        getattr(transformers, config)(num_labels=4, image_size=size, **words)
    )
    return net, lambda x, y: net(pixel_values=x, labels=y).loss, (_images(size=size), _labels())


_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@_model("GPT-2", "transformers", "AdamW, fused")
def _() -> tuple[Any, ...]:
    words = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    return _language_model("GPT2Config", "GPT2LMHeadModel", **words)


@_model("BERT (masked words)", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    return _language_model("BertConfig", "BertForMaskedLM")


@_model("ALBERT", "transformers", "Adagrad")
def _() -> tuple[Any, ...]:
    return _language_model("AlbertConfig", "AlbertForMaskedLM", embedding_size=16)


@_model("DeBERTa v2", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    words = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    return _language_model("DebertaV2Config", "DebertaV2ForMaskedLM", **words)


@_model("RoFormer", "transformers", "RAdam")
def _() -> tuple[Any, ...]:
    return _language_model("RoFormerConfig", "RoFormerForMaskedLM", embedding_size=32)


@_model("FNet", "transformers", "Adam")
def _() -> tuple[Any, ...]:
    return _language_model("FNetConfig", "FNetForMaskedLM")


@_model("T5", "transformers", "Adafactor (transformers)")
def _() -> tuple[Any, ...]:
    import transformers

    net = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=_VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        )
    )
    return net, lambda x, y: net(input_ids=x, labels=y).loss, (_tokens(), _tokens(length=16))


@_model("BART", "transformers", "Adafactor")
def _() -> tuple[Any, ...]:
    import transformers

    net = transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=_VOCABULARY,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=64,
        )
    )
    return net, lambda x, y: net(input_ids=x, labels=y).loss, (_tokens(), _tokens(length=16))


@_model("Llama (grouped queries)", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    return _language_model("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2)


@_model("Mistral (sliding window)", "transformers", "Muon and AdamW")
def _() -> tuple[Any, ...]:
    words = {"num_key_value_heads": 2, "sliding_window": 8}
    return _language_model("MistralConfig", "MistralForCausalLM", **words)


@_model("Mixtral (experts)", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    words = {"num_key_value_heads": 2, "num_local_experts": 4, "output_router_logits": True}
    return _language_model("MixtralConfig", "MixtralForCausalLM", **words)


@_model("Gemma 2", "transformers", "AdamW, fused")
def _() -> tuple[Any, ...]:
    words = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8}
    return _language_model("Gemma2Config", "Gemma2ForCausalLM", **words)


@_model("GPT-NeoX", "transformers", "NAdam")
def _() -> tuple[Any, ...]:
    return _language_model("GPTNeoXConfig", "GPTNeoXForCausalLM")


@_model("Mamba (slow path)", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    words = {"state_size": 4, "expand": 2, "use_mambapy": False}
    net, loss_of, _ = _language_model("MambaConfig", "MambaForCausalLM", **words)
    return net, loss_of, (_tokens(2, 16),)


@_model("RWKV", "transformers", "Adam")
def _() -> tuple[Any, ...]:
    words = {"attention_hidden_size": 32, "context_length": 64}
    net, loss_of, _ = _language_model("RwkvConfig", "RwkvForCausalLM", **words)
    return net, loss_of, (_tokens(2, 16),)


@_model("ViT", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    return _image_model("ViTConfig", "ViTForImageClassification", patch_size=4, **_SMALL)


@_model("ViT, masked autoencoder", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    import transformers

    net = transformers.ViTMAEForPreTraining(
        transformers.ViTMAEConfig(
            image_size=32,
            patch_size=4,
            decoder_hidden_size=32,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=64,
            **_SMALL,
        )
    )
    return net, lambda x: net(pixel_values=x).loss, (_images(),)


@_model("Swin", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    words = {"patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
    return _image_model("SwinConfig", "SwinForImageClassification", window_size=4, **words)


@_model("ConvNeXt v2", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    words = {"patch_size": 2, "hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2}
    return _image_model("ConvNextV2Config", "ConvNextV2ForImageClassification", **words)


@_model("MobileViT", "transformers", "SGD, Nesterov, decay")
def _() -> tuple[Any, ...]:
    words = {
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32],
        "num_attention_heads": 4,
    }
    return _image_model("MobileViTConfig", "MobileViTForImageClassification", 64, **words)


@_model("SegFormer", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    import transformers

    net = transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(
            num_labels=3,
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 16, 24, 32],
            num_attention_heads=[1, 1, 2, 2],
            decoder_hidden_size=16,
        )
    )
    batch = _images(2, 64), torch.randint(0, 3, (2, 64, 64))
    return net, lambda x, y: net(pixel_values=x, labels=y).loss, batch


@_model("CLIP", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    import transformers

    text = {"vocab_size": _VOCABULARY, "max_position_embeddings": 64, "eos_token_id": 2}
    net = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=text | _SMALL,
            vision_config={"image_size": 32, "patch_size": 8} | _SMALL,
            projection_dim=16,
        )
    )

    def loss_of(x: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = net(input_ids=x, pixel_values=pictures, return_loss=True).loss
        return loss

    return net, loss_of, (_tokens(length=16), _images())


@_model("Wav2Vec2 (CTC)", "transformers", "Adam")
def _() -> tuple[Any, ...]:
    import transformers

    net = transformers.Wav2Vec2ForCTC(
        transformers.Wav2Vec2Config(
            vocab_size=16,
            conv_dim=(16, 16, 16),
            conv_stride=(5, 2, 2),
            conv_kernel=(10, 3, 3),
            num_feat_extract_layers=3,
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
            mask_time_prob=0.0,
            layerdrop=0.0,
            **_SMALL,
        )
    )
    batch = torch.randn(2, 1600), torch.randint(1, 16, (2, 8))
    return net, lambda x, y: net(input_values=x, labels=y).loss, batch


@_model("Whisper", "transformers", "AdamW")
def _() -> tuple[Any, ...]:
    import transformers

    net = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=_VOCABULARY,
            num_mel_bins=16,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=32,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )
    batch = torch.randn(2, 16, 64), _tokens(2, 16)
    return net, lambda x, y: net(input_features=x, labels=y).loss, batch


@_model("PatchTST", "transformers", "Adam")
def _() -> tuple[Any, ...]:
    import transformers

    net = transformers.PatchTSTForPrediction(
        transformers.PatchTSTConfig(
            num_input_channels=3,
            context_length=64,
            patch_length=8,
            patch_stride=8,
            prediction_length=8,
            d_model=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
        )
    )
    batch = torch.randn(8, 64, 3), torch.randn(8, 8, 3)
    return net, lambda x, y: net(past_values=x, future_values=y).loss, batch


# ---------------------------------------------------------------- MONAI


def _segmentation(net: nn.Module, size: int, dims: int, rows: int = 1) -> tuple[Any, ...]:
    """Dice and cross entropy on a volume of two classes."""
    from monai.losses import DiceCELoss

    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    batch = (
        torch.randn(rows, 1, *[size] * dims),
        torch.randint(0, 2, (rows, 1, *[size] * dims)),
    )
    return net, lambda x, y: loss(net(x), y), batch


@_model("SegResNet", "monai", "Adam")
def _() -> tuple[Any, ...]:
    from monai.networks.nets import SegResNet

    net = SegResNet(2, 8, 1, 2, dropout_prob=0.1, blocks_down=(1, 1, 1), blocks_up=(1, 1))
    return _segmentation(net, 32, 2, 2)


@_model("Swin UNETR", "monai", "AdamW")
def _() -> tuple[Any, ...]:
    from monai.networks.nets import SwinUNETR

    net = SwinUNETR(
        in_channels=1,
        out_channels=2,
        feature_size=12,
        spatial_dims=2,
        depths=(1, 1, 1, 1),
        num_heads=(1, 1, 2, 2),
        drop_rate=0.1,
    )
    return _segmentation(net, 64, 2)


@_model("UNETR", "monai", "AdamW")
def _() -> tuple[Any, ...]:
    from monai.networks.nets import UNETR

    net = UNETR(
        in_channels=1,
        out_channels=2,
        img_size=32,
        feature_size=4,
        hidden_size=24,
        mlp_dim=48,
        num_heads=2,
        spatial_dims=2,
        dropout_rate=0.1,
    )
    return _segmentation(net, 32, 2, 2)


@_model("Attention U-Net", "monai", "SGD, momentum")
def _() -> tuple[Any, ...]:
    from monai.networks.nets import AttentionUnet

    net = AttentionUnet(2, 1, 2, channels=(4, 8, 16), strides=(2, 2), dropout=0.1)
    return _segmentation(net, 32, 2, 2)


@_model("DynUNet", "monai", "SGD, Nesterov, decay")
def _() -> tuple[Any, ...]:
    from monai.networks.nets import DynUNet

    net = DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16], res_block=True)
    return _segmentation(net, 32, 2, 2)


@_model("DenseNet-121", "monai", "SGD, momentum")
def _() -> tuple[Any, ...]:
    from monai.networks.nets import DenseNet121

    net = DenseNet121(2, 1, 4, init_features=8, growth_rate=4, dropout_prob=0.1)
    return net, lambda x, y: F.cross_entropy(net(x), y), (_images(2, 32, 1), _labels(2))


@_model("BasicUNet", "monai", "RMSprop")
def _() -> tuple[Any, ...]:
    from monai.networks.nets import BasicUNet

    return _segmentation(BasicUNet(2, 1, 2, (4, 4, 8, 8, 16, 4), dropout=0.1), 32, 2, 2)


# ---------------------------------------------------------------- diffusers


def _noised(net: nn.Module, predict: Callable[..., torch.Tensor]) -> tuple[Any, ...]:
    """The loss of a diffusion model: noise and times are drawn within the step."""
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(num_train_timesteps=100)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn_like(x)
        times = torch.randint(0, 100, (x.shape[0],))
        return F.mse_loss(predict(scheduler.add_noise(x, noise, times), times), noise)

    return net, loss_of, (_images(2, 16),)


_BLOCKS = {"layers_per_block": 1, "norm_num_groups": 4, "block_out_channels": (8, 16)}


@_model("UNet2DModel", "diffusers", "AdamW")
def _() -> tuple[Any, ...]:
    from diffusers import UNet2DModel

    net = UNet2DModel(
        16,
        3,
        3,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        dropout=0.1,
        **_BLOCKS,
    )
    return _noised(net, lambda x, t: net(x, t).sample)


@_model("UNet2DConditionModel", "diffusers", "AdamW, fused")
def _() -> tuple[Any, ...]:
    from diffusers import UNet2DConditionModel

    net = UNet2DConditionModel(
        16,
        3,
        3,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        **_BLOCKS,
    )
    words = torch.randn(2, 8, 16)
    return _noised(net, lambda x, t: net(x, t, encoder_hidden_states=words).sample)


@_model("AutoencoderKL", "diffusers", "Adam, amsgrad")
def _() -> tuple[Any, ...]:
    from diffusers import AutoencoderKL

    net = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        **_BLOCKS,
    )

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        posterior = net.encode(x).latent_dist
        out = net.decode(posterior.sample()).sample
        return F.mse_loss(out, x) + 1e-3 * posterior.kl().mean()

    return net, loss_of, (_images(2, 16),)


@_model("VQModel", "diffusers", "Adam")
def _() -> tuple[Any, ...]:
    from diffusers import VQModel

    net = VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        num_vq_embeddings=16,
        **_BLOCKS,
    )

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        out = net(x)
        return F.mse_loss(out.sample, x) + out.commit_loss.mean()

    return net, loss_of, (_images(2, 16),)


@_model("DiT", "diffusers", "AdamW")
def _() -> tuple[Any, ...]:
    from diffusers import DiTTransformer2DModel

    net = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=3,
        out_channels=3,
        num_layers=2,
        norm_num_groups=4,
        sample_size=16,
        num_embeds_ada_norm=100,
    )
    classes = _labels(2)
    return _noised(net, lambda x, t: net(x, timestep=t, class_labels=classes).sample)


# ---------------------------------------------------------------- timm


class _Anything(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of torchvision, with an empty class for every name."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        ours = name.split(".", maxsplit=1)[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def exec_module(self, module: types.ModuleType) -> None:
        def anything(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Anything(name, (), {})

        module.__dict__["__getattr__"] = anything


@contextmanager
def _something_like_torchvision() -> Iterator[None]:
    """timm asks for torchvision, which loads only beside the torch that it was built with.

    timm's networks take a class of it to test for, and no more.
    """
    finder = _StandIn()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]


def _timm() -> Any:
    if "timm" not in sys.modules and "torchvision" not in sys.modules:
        with _something_like_torchvision():
            import timm
    import timm

    return timm


def _picture_model(net: nn.Module, rows: int = 4, size: int = 32) -> tuple[Any, ...]:
    return net, lambda x, y: F.cross_entropy(net(x), y), (_images(rows, size), _labels(rows))


@_model("ResNet-10-T", "timm", "SGD, momentum")
def _() -> tuple[Any, ...]:
    words = {"drop_path_rate": 0.1, "channels": (8, 16, 24, 32), "stem_width": 8}
    return _picture_model(_timm().create_model("resnet10t", num_classes=4, **words))


@_model("MLP-Mixer", "timm", "AdamW")
def _() -> tuple[Any, ...]:
    mixer = _timm().models.mlp_mixer.MlpMixer
    words = {"img_size": 32, "patch_size": 8, "num_blocks": 3, "embed_dim": 32}
    return _picture_model(mixer(num_classes=4, drop_path_rate=0.1, **words))


@_model("MobileNet v3", "timm", "RMSprop")
def _() -> tuple[Any, ...]:
    return _picture_model(_timm().create_model("mobilenetv3_small_050", num_classes=4), 16, 48)


@_model("CaiT", "timm", "AdamW")
def _() -> tuple[Any, ...]:
    words = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4, "drop_path_rate": 0.1}
    return _picture_model(_timm().create_model("cait_xxs24_224", num_classes=4, **words))


# ---------------------------------------------------------------- graph networks


def _graph_network(net: nn.Module, features: int = 16) -> tuple[Any, ...]:
    """Classes of a random graph's nodes."""
    nodes, edges = 200, 800
    x, y = torch.randn(nodes, features), torch.randint(0, 4, (nodes,))
    pairs = torch.randint(0, nodes, (2, edges))
    return net, lambda x, pairs, y: F.cross_entropy(net(x, pairs), y), (x, pairs, y)


@_model("GCN", "torch-geometric", "Adam")
def _() -> tuple[Any, ...]:
    from torch_geometric.nn import GCN

    return _graph_network(GCN(16, 32, 3, 4, dropout=0.2))


@_model("GAT", "torch-geometric", "Adam")
def _() -> tuple[Any, ...]:
    from torch_geometric.nn import GAT

    return _graph_network(GAT(16, 32, 3, 4, heads=4, dropout=0.2, v2=True))


@_model("GraphSAGE", "torch-geometric", "AdamW")
def _() -> tuple[Any, ...]:
    from torch_geometric.nn import GraphSAGE

    return _graph_network(GraphSAGE(16, 32, 3, 4, dropout=0.2, norm="batch"))


@_model("GIN", "torch-geometric", "Adam")
def _() -> tuple[Any, ...]:
    from torch_geometric.nn import GIN

    return _graph_network(GIN(16, 32, 3, 4, norm="layer"))


# ---------------------------------------------------------------- which of them CI takes

TURNS = 6


def seeded(name: str) -> Case:
    """The model of that name, always the same."""
    torch.manual_seed(0)
    case = MODELS[name].build()
    torch.manual_seed(1)
    return case


def in_turn() -> set[str]:
    """The models that CI takes this time; `make nightly` takes all."""
    return {name for i, name in enumerate(MODELS) if i % TURNS == turn(TURNS)}


# What docs/package-models.md says of what was left out.
NOT_TRIED = (
    "torchvision's own networks: its wheel loads only beside the torch that it was built with, "
    "which the CPU's is not everywhere. timm asks for it too, but takes nothing of it that its "
    "networks need, and is tried without.",
    "torch-geometric's networks on points (SchNet, DimeNet, PointNet++): they need torch-cluster, "
    "which is compiled against each torch.",
    "vit-pytorch (needs torchvision), x-transformers, DGL (its wheels end at torch 2.4).",
)
