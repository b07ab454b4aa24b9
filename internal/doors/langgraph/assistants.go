package langgraph

import (
	"crypto/sha1"
	"encoding/hex"
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/doors"
)

// graphs is the namespace of the ids of assistants, as the reference server has it.
var graphs = [16]byte{0x6b, 0xa7, 0xb8, 0x21, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}

// idOfKind is the UUIDv5 of a kind's name.
func idOfKind(kind string) string {
	sum := sha1.Sum(append(graphs[:], kind...))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	x := hex.EncodeToString(sum[:16])
	return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
}

func showAssistant(k *api.Kind) object {
	var at any
	if len(k.Builds) > 0 {
		at = k.Builds[len(k.Builds)-1].FirstSeenAt
	}
	return object{"assistant_id": idOfKind(k.Kind), "graph_id": k.Kind, "name": k.Kind, "description": k.Description,
		"config": object{}, "context": object{}, "metadata": object{"created_by": "system"}, "version": 1,
		"created_at": at, "updated_at": at}
}

// findKind finds an assistant by the name of its kind or by its id.
func findKind(c *doors.Call, id string) (*api.Kind, error) {
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
		if idOfKind(kinds[i].Kind) == id {
			return &kinds[i], nil
		}
	}
	return nil, perdure.Errorf(perdure.CodeNotFound, "no such assistant")
}

func getAssistant(c *doors.Call) error {
	k, err := findKind(c, c.Param("assistant"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, showAssistant(k))
}

func getSchemas(c *doors.Call) error {
	k, err := findKind(c, c.Param("assistant"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, object{"graph_id": k.Kind, "input_schema": orNull(k.InputSchema),
		"output_schema": orNull(k.OutputSchema), "state_schema": nil, "config_schema": nil, "context_schema": nil})
}

// assistantSearch is the body of a search for assistants.
type assistantSearch struct {
	page
	GraphID string `json:"graph_id"`
	Name    string `json:"name"`
}

// page is a part of a list.
type page struct {
	Limit  int `json:"limit"`
	Offset int `json:"offset"`
}

const (
	defaultPage = 10
	maxPage     = 100
	maxOffset   = 1000
)

// check fills in the default, and refuses what is out of bounds.
func (p *page) check() error {
	switch {
	case p.Limit < 0 || p.Limit > maxPage*10:
		return perdure.Invalid("limit", "lies between 1 and %d", maxPage)
	case p.Offset < 0 || p.Offset > maxOffset:
		return perdure.Invalid("offset", "lies between 0 and %d", maxOffset)
	case p.Limit == 0:
		p.Limit = defaultPage
	}
	p.Limit = min(p.Limit, maxPage)
	return nil
}

// of returns the part of a list, and whether more follows.
func of[T any](p page, all []T) (part []T, more bool) {
	begin := min(p.Offset, len(all))
	end := min(begin+p.Limit, len(all))
	return all[begin:end], end < len(all)
}

func matchingKinds(c *doors.Call) (s assistantSearch, out []api.Kind, err error) {
	if _, err = c.Decode(&s); err != nil {
		return s, nil, err
	}
	if err = s.check(); err != nil {
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

func searchAssistants(c *doors.Call) error {
	s, kinds, err := matchingKinds(c)
	if err != nil {
		return err
	}
	part, more := of(s.page, kinds)
	if more {
		c.AnswerHeader().Set("X-Pagination-Next", itoa(s.Offset+s.Limit))
	}
	out := make([]object, len(part))
	for i := range part {
		out[i] = showAssistant(&part[i])
	}
	return c.JSON(http.StatusOK, out)
}

func countAssistants(c *doors.Call) error {
	_, kinds, err := matchingKinds(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, len(kinds))
}
