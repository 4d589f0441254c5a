package lua

// definition is what is known of a script apart from its text.
type definition struct {
	name     string
	access   Access
	answer   Answer
	effect   func(*Effect, call)
	released []wording
}

// wording is the digest of a text as some releases of CoSky send it.
type wording struct{ release, sha1 string }

// definitions lists the scripts. Older wordings differ in replies, in what they leave
// behind when they fail and in how much they notice, never beyond the effect given
// here: e.g. before 5.8 config_rollback of a removed config fails after it wrote the
// index, and instance_count_stat removes nothing.
var definitions = []definition{
	{"config_set", ReadWrite, NoAnswer, configEffect, []wording{
		{"4.0-5.8", "62f78b8df90039549e7ec5d6c65a1934cb0d6062"},
		{"3.x", "17542a655e864cec37560933ec645078463d27f2"},
	}},
	{"config_remove", ReadWrite, NoAnswer, configEffect, []wording{
		{"4.0-5.8", "84aaa18ee25f7e2ad353833a947dc7fee41f0b51"},
		{"3.x", "b6ea9e19b6644cf4337e0e58cfe4066a4180d46d"},
	}},
	{"config_rollback", ReadWrite, NoAnswer, configEffect, []wording{
		{"5.8", "61fc4a0ad037cd7a848b09dd3a8e9262415c9b54"},
		{"4.0-5.7", "527e42e678e2e0c10191a8040ec08c80225b1656"},
		{"3.x", "d3b2f1b858f39cd1d598a9538abc4aea213569cf"},
	}},
	{"registry_register", ReadWrite, NoAnswer, registerEffect, []wording{
		{"5.8", "1ff4c1dc2af339167f57da15791465866eb0db97"},
		{"3.x-5.7", "4566a16ef32b43d278d880790214c48ebf287812"},
	}},
	{"registry_renew", ReadWrite, NoAnswer, instanceEffect, []wording{
		{"4.0-5.8", "9e6a55cff378f0e77ccf141b5cf64605b2f850a0"},
		{"3.x", "4dc5f9917e4dfadb957f2b22f57f6b6517795c42"},
	}},
	{"registry_deregister", ReadWrite, NoAnswer, deregisterEffect, []wording{
		{"3.x-5.8", "0c52a4204920fc9df15860607ded057f51ea6368"},
	}},
	{"registry_set_metadata", ReadWrite, NoAnswer, instanceEffect, []wording{
		{"5.8", "e9ec5a5667feeb1fdfdbd76b5e3ed1e7d6e22a35"},
		{"4.0-5.7", "96e82f109fa112425bee5b2d9e7b8128beb4049a"},
		{"3.x", "24b5cc45ef151c161c5ddd28feb5443e8fdf3a4a"},
	}},
	{"registry_set_service", ReadWrite, NoAnswer, setServiceEffect, []wording{
		{"4.0-5.8", "a14b71e8c5218920452641391d75c739344063e2"},
		{"3.x", "02985e98a5434830950882943975b76b8e377ef7"},
	}},
	{"registry_remove_service", ReadWrite, NoAnswer, removeServiceEffect, []wording{
		{"4.0-5.8", "664a30ee6978e7fdbc88439127cb982821f04866"},
		{"3.x", "2a16951bee7a7b2a210898a9fe581bde4f81dca5"},
	}},
	{"discovery_get_instances", Noticing, Instances, getInstancesEffect, []wording{
		{"3.x-5.8", "dfc6f2e6bf1a3dc856108f26255766447dad3da6"},
	}},
	{"discovery_get_instance", Noticing, Instance, getInstanceEffect, []wording{
		{"5.8", "808dcb09612f8e86210051d5117a24e76ebd177a"},
		{"3.x-5.7", "683c3a4152ead95983f4e0b5fff412ef9f2f9d1c"},
	}},
	{"discovery_get_instance_ttl", Noticing, InstanceExpiry, getInstanceEffect, []wording{
		{"5.8", "4d79f671b1f724cdb2e3d7c30ac4e215af1a0eeb"},
		{"3.x-5.7", "8e9862aed45aeb1b62678772680d4679a793524a"},
	}},
	{"instance_count_stat", Noticing, InstanceCount, instanceCountEffect, []wording{
		{"5.8", "b1bedb87a2b9c430fa7ccbc9adafa3720e6eb7ea"},
		{"3.x-5.7", "c4d8defa9778e6ef9f4bd2f357caed4c08257087"},
	}},
	{"service_stat", ReadWrite, NoAnswer, serviceStatEffect, []wording{
		{"3.x-5.8", "a1b80109715bcfd249a9ef981def15a7278e029a"},
	}},
	{"service_topology_add", ReadWrite, NoAnswer, topologyAddEffect, []wording{
		{"3.x-5.8", "c60b0d7193d3a7501bd92cd1727d186a7e7dbb06"},
	}},
	{"service_topology_get", ReadOnly, Topology, topologyGetEffect, []wording{
		{"3.x-5.8", "00514bc2cf896e6c1723d3b3438235cce449b12c"},
	}},
	{"user_state", ReadWrite, NoAnswer, userStateEffect, []wording{
		{"5.7-5.8", "05a232a44d1bbcf835b64bdc5286022365bc336b"},
	}},
}
