package main

import "github.com/perdure/perdure"

// keyFlags are the flags of a unique or debounced run.
type keyFlags struct {
	unique   perdure.Unique
	while    *string
	conflict *string
	debounce perdure.Debounce
}

func addKeyFlags(f *flagSet) *keyFlags {
	k := &keyFlags{}
	f.StringVar(&k.unique.Key, "unique", "", "only one run of the kind with this `key` at a time")
	k.while = f.String("unique-while", "", "how long the key is taken: `live`, waiting, or for with --unique-for")
	f.TextVar(&k.unique.For, "unique-for", perdure.Duration(0), "how long the key is taken, with --unique-while for")
	k.conflict = f.String("on-conflict", "", "if the key is taken: `return` that run, reject, or replace it")
	f.StringVar(&k.debounce.Key, "debounce", "", "further starts with this `key` replace the input and put it off")
	f.TextVar(&k.debounce.For, "debounce-for", perdure.Duration(0), "begin so long after the last start")
	f.TextVar(&k.debounce.Max, "debounce-max", perdure.Duration(0), "begin so long after the first at the latest")
	return k
}

// apply sets what was given; the server checks it.
func (k *keyFlags) apply(sub *perdure.Submission) {
	k.unique.While, k.unique.OnConflict = perdure.UniqueWhile(*k.while), perdure.UniqueConflict(*k.conflict)
	if k.unique != (perdure.Unique{}) {
		sub.Unique = &k.unique
	}
	if k.debounce != (perdure.Debounce{}) {
		sub.Debounce = &k.debounce
	}
}
