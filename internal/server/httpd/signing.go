package httpd

import (
	"github.com/perdure/perdure/api"
)

func signingKeys(c *call, _ *none) (int, *api.SigningKeys, error) {
	out := &api.SigningKeys{Keys: []api.SigningKey{}}
	if s := c.s.engine.Signer(); s != nil {
		for _, k := range s.Trust().Keys() {
			out.Keys = append(out.Keys, api.SigningKey{KeyID: k.ID, PublicKey: string(k.PEM()),
				Signs: k.ID == s.KeyID()})
		}
	}
	return 0, out, nil
}
