package httpd

import (
	"fmt"
	"reflect"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// policySettings lists the settings of the policy that are in force on this node.
func policySettings(c *call, _ *none) (int, *api.Policy, error) {
	return 0, showPolicy(*c.s.engine.Policy()), nil
}

// thresholdNames maps the names of thresholds to those of the settings that they override, where
// the two differ.
var thresholdNames = map[string]string{"stale": "stale_after", "dead": "dead_after"}

// showPolicy returns the settings of a policy with their values as texts. It has a copy of the
// policy, because settings point into it.
func showPolicy(p perdure.Policy) *api.Policy {
	overrides := map[string][]api.PolicyOverride{}
	p.Liveness.Each(func(section []string, t *perdure.Thresholds) {
		var o api.PolicyOverride
		for i := 0; i+1 < len(section); i += 2 {
			if section[i] == "kind" {
				o.Kind = section[i+1]
			} else {
				o.Activity = section[i+1]
			}
		}
		for _, s := range t.Settings() {
			d := *s.Value.(*time.Duration)
			if d == 0 {
				continue
			}
			name := s.Name
			if long, ok := thresholdNames[name]; ok {
				name = long
			}
			o.Value = d.String()
			overrides[name] = append(overrides[name], o)
		}
	})
	out := &api.Policy{}
	for _, s := range p.Settings() {
		value := reflect.ValueOf(s.Value).Elem().Interface()
		out.Settings = append(out.Settings, api.PolicySetting{Name: s.Name, Value: fmt.Sprint(value),
			Default: fmt.Sprint(s.Default), Changed: value != s.Default, PerKind: perdure.PerKind(s.Name), Help: s.Help,
			Overrides: overrides[s.Name]})
	}
	return out
}
