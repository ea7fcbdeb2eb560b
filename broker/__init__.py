"""The broker: routes every call along its way, and knows who may call whom. It decodes no body."""
