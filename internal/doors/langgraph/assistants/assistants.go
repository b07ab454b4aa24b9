package assistants

import (
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
	"github.com/perdure/perdure/internal/doors/langgraph/shape"
)

func showAssistant(k *api.Kind) shape.Object {
	var at any
	if len(k.Builds) > 0 {
		at = k.Builds[len(k.Builds)-1].FirstSeenAt
	}
	return shape.Object{"assistant_id": shape.IDOfKind(k.Kind), "graph_id": k.Kind, "name": k.Kind,
		"description": k.Description, "config": shape.Object{}, "context": shape.Object{},
		"metadata": shape.Object{"created_by": "system"}, "version": 1, "created_at": at, "updated_at": at}
}

// Find finds an assistant by the name of its kind or by its id.
func Find(c *doors.Call, id string) (*api.Kind, error) {
	if id == "" {
		return nil, perdure.Invalid("assistant_id", "is missing")
	}
	k, err := c.API.Kind(c.Context(), id)
	if err == nil {
		return k, nil
	}
	if p := doors.ProblemOf(err); p.Code != perdure.CodeNotFound && p.Code != perdure.CodeInvalid {
		return nil, err
	}
	kinds, err := c.API.Kinds(c.Context())
	if err != nil {
		return nil, err
	}
	for i := range kinds {
		if shape.IDOfKind(kinds[i].Kind) == id {
			return &kinds[i], nil
		}
	}
	return nil, perdure.Errorf(perdure.CodeNotFound, "no such assistant")
}

// Get answers with an assistant.
func Get(c *doors.Call) error {
	k, err := Find(c, c.Param("assistant"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showAssistant(k))
}

// Schemas answers with the schemas of an assistant, as its workers have announced them.
func Schemas(c *doors.Call) error {
	k, err := Find(c, c.Param("assistant"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, shape.Object{"graph_id": k.Kind, "input_schema": shape.OrNull(k.InputSchema),
		"output_schema": shape.OrNull(k.OutputSchema), "state_schema": nil, "config_schema": nil,
		"context_schema": nil})
}

// assistantSearch is the body of a search for assistants.
type assistantSearch struct {
	shape.Page
	GraphID string `json:"graph_id"`
	Name    string `json:"name"`
}

func matchingKinds(c *doors.Call) (s assistantSearch, out []api.Kind, err error) {
	if _, err = c.Decode(&s); err != nil {
		return s, nil, err
	}
	if err = s.Check(); err != nil {
		return s, nil, err
	}
	kinds, err := c.API.Kinds(c.Context())
	for _, k := range kinds {
		if (s.GraphID == "" || s.GraphID == k.Kind) && (s.Name == "" || s.Name == k.Kind) {
			out = append(out, k)
		}
	}
	return s, out, err
}

// Search answers with a page of assistants.
func Search(c *doors.Call) error {
	s, kinds, err := matchingKinds(c)
	if err != nil {
		return err
	}
	part, more := shape.PartOf(s.Page, kinds)
	if more {
		c.AnswerHeader().Set("X-Pagination-Next", shape.Itoa(s.Offset+s.Limit))
	}
	out := make([]shape.Object, len(part))
	for i := range part {
		out[i] = showAssistant(&part[i])
	}
	return c.JSON(http.StatusOK, out)
}

// Count answers with the number of assistants.
func Count(c *doors.Call) error {
	_, kinds, err := matchingKinds(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, len(kinds))
}
