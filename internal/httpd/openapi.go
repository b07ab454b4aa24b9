package httpd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// describe makes the OpenAPI 3.1 document out of the table: what is not in the one is not in the other.
func describe(routes []route) ([]byte, error) {
	schemas := map[string]any{}
	paths := map[string]map[string]any{}
	codes := make([]string, len(api.Codes))
	for i, c := range api.Codes {
		codes[i] = string(c.Code)
	}
	problem := schemaOf(reflect.TypeFor[api.Problem](), schemas)
	schemas["Problem"].(map[string]any)["properties"].(map[string]any)["code"] = map[string]any{"type": "string", "enum": codes}
	for _, r := range routes {
		op := map[string]any{"summary": r.summary, "operationId": operationID(r), "responses": responses(r, schemas, problem)}
		if params := parameters(r); len(params) > 0 {
			op["parameters"] = params
		}
		if r.in != reflect.TypeFor[none]() {
			op["requestBody"] = map[string]any{"content": map[string]any{"application/json": map[string]any{"schema": schemaOf(r.in, schemas)}}}
		}
		if r.bytes {
			op["requestBody"] = map[string]any{"content": map[string]any{perdure.AnyContent: map[string]any{}}}
		}
		switch {
		case r.guard.open:
			op["security"] = []any{}
		case r.guard.platform && r.guard.scope != "":
			op["description"] = "Takes a key of the platform with the scope `" + string(r.guard.scope) + "`."
		case r.guard.platform:
			op["description"] = "Takes a key of the platform."
		default:
			op["description"] = "Takes a key with the scope `" + string(r.guard.scope) + "`."
		}
		if paths[r.pattern] == nil {
			paths[r.pattern] = map[string]any{}
		}
		paths[r.pattern][strings.ToLower(r.method)] = op
	}
	return json.MarshalIndent(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "Perdure", "version": "v1",
			"description": "A durable runtime for AI-agent runs. Timeouts stop waiting, not working."},
		"security": []any{map[string]any{"key": []any{}}},
		"paths":    paths,
		"components": map[string]any{"schemas": schemas,
			"securitySchemes": map[string]any{"key": map[string]any{"type": "http", "scheme": "bearer"}}},
	}, "", " ")
}

var notWord = regexp.MustCompile(`[^A-Za-z0-9]+`)

func operationID(r route) string {
	return strings.Trim(strings.ToLower(r.method)+"_"+notWord.ReplaceAllString(strings.TrimPrefix(r.pattern, "/api"), "_"), "_")
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)

func parameters(r route) (out []any) {
	for _, m := range inPath.FindAllStringSubmatch(r.pattern, -1) {
		out = append(out, map[string]any{"name": m[1], "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
	}
	for _, q := range r.query {
		out = append(out, map[string]any{"name": q, "in": "query", "schema": map[string]any{"type": "string"}})
	}
	if r.keyed {
		out = append(out, map[string]any{"name": "Idempotency-Key", "in": "header", "schema": map[string]any{"type": "string"}})
	}
	return out
}

func responses(r route, schemas map[string]any, problem any) map[string]any {
	body := map[string]any{r.media: map[string]any{"schema": map[string]any{"type": "string"}}}
	if r.raw == nil {
		body = map[string]any{"application/json": map[string]any{"schema": schemaOf(r.out, schemas)}}
	}
	out := map[string]any{"default": map[string]any{"description": "A problem",
		"content": map[string]any{"application/problem+json": map[string]any{"schema": problem}}}}
	for _, status := range append([]int{r.usual()}, r.more...) {
		answer := map[string]any{"description": http.StatusText(status)}
		if status != http.StatusNoContent && status != http.StatusSwitchingProtocols {
			answer["content"] = body
		}
		out[fmt.Sprint(status)] = answer
	}
	return out
}

// schemaOf gives the JSON schema of a type; named structs become components.
func schemaOf(t reflect.Type, schemas map[string]any) any {
	switch t {
	case reflect.TypeFor[perdure.Instant]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[perdure.Duration]():
		return map[string]any{"type": "string", "examples": []any{"30s", "1h15m"}}
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[perdure.Value]():
		return map[string]any{"description": "any JSON value"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), schemas)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), schemas)}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Struct:
		return structSchema(t, schemas)
	}
	return map[string]any{"type": "integer"}
}

// schemaNames are for types that share their name with another one, or shall not be seen under theirs.
var schemaNames = map[reflect.Type]string{
	reflect.TypeFor[perdure.JournalEntry](): "NewJournalEntry",
	reflect.TypeFor[perdure.Message]():      "NewMessage",
	reflect.TypeFor[pollBody]():             "Poll",
	reflect.TypeFor[none]():                 "Nothing",
}

func schemaName(t reflect.Type) string {
	if name, ok := schemaNames[t]; ok {
		return name
	}
	return t.Name()
}

func structSchema(t reflect.Type, schemas map[string]any) any {
	name := schemaName(t)
	ref := map[string]any{"$ref": "#/components/schemas/" + name}
	if _, ok := schemas[name]; ok {
		return ref
	}
	properties := map[string]any{}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	schemas[name] = schema
	var required []string
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Anonymous {
				add(f.Type)
				continue
			}
			tag, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			if tag == "-" || tag == "" {
				continue
			}
			properties[tag] = schemaOf(f.Type, schemas)
			if !strings.Contains(opts, "omitempty") {
				required = append(required, tag)
			}
		}
	}
	add(t)
	if len(required) > 0 {
		slices.Sort(required)
		schema["required"] = required
	}
	return ref
}
