package openai

import (
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/openai/again"
	"github.com/perdure/perdure/internal/doors/openai/shape"
)

// A model is a kind.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Owner   string `json:"owned_by"`
}

func modelOf(k *api.Kind) model {
	m := model{ID: k.Kind, Object: "model", Owner: shape.Server}
	for _, b := range k.Builds {
		m.Created = int64(b.FirstSeenAt) / 1_000_000
	}
	return m
}

// listModels is GET /v1/models.
func listModels(c *doors.Call) error {
	kinds, err := c.API.Kinds(c.Context())
	if err != nil {
		return err
	}
	data := []model{}
	for i := range kinds {
		data = append(data, modelOf(&kinds[i]))
	}
	return c.JSON(200, map[string]any{"object": "list", "data": data})
}

// getModel is GET /v1/models/{model}.
func getModel(c *doors.Call) error {
	if err := again.CheckKind(c, c.Param("model")); err != nil {
		return err
	}
	k, err := c.API.Kind(c.Context(), c.Param("model"))
	if err != nil {
		return err
	}
	return c.JSON(200, modelOf(k))
}
