package api

import (
	"encoding/json"

	"github.com/perdure/perdure"
)

// Views lists the views that a run has published, by name.
type Views struct {
	Views []ViewHead `json:"views"`
}

// A ViewHead says when a view was last published.
type ViewHead struct {
	Name string `json:"name"`
	// Size is the number of bytes of the value.
	Size int64 `json:"size"`
	// Version rises by one with each published value.
	Version   int64           `json:"version"`
	UpdatedAt perdure.Instant `json:"updated_at"`
}

// A View is the latest value that a run has published under a name.
type View struct {
	ViewHead
	Value json.RawMessage `json:"value"`
}
