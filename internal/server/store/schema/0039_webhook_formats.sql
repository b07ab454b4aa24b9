-- expand 0.2.0: the form of the bodies that a webhook receives. Empty: Perdure's own.
ALTER TABLE webhooks ADD COLUMN format {text} NOT NULL DEFAULT '';
