"""The name of torch.utils.model_zoo: the old one of gt.hub.load_state_dict_from_url."""

from gt.hub import load_state_dict_from_url as load_url

__all__ = ["load_url"]
