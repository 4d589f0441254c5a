package info

import (
	"strings"
	"testing"
)

func crlf(s string) string { return strings.ReplaceAll(strings.TrimLeft(s, "\n"), "\n", "\r\n") }

func TestAggregate(t *testing.T) {
	facts := map[string]string{"redis_mode": "standalone", "role": "master", "cluster_enabled": "0"}
	tests := []struct {
		name  string
		texts []string
		want  string
	}{
		{"nothing", []string{"", ""}, ""},
		{"one master", []string{"# Server\nredis_version:7.0.15\nredis_mode:cluster\n"}, "# Server\nredis_version:7.0.15\nredis_mode:standalone\n"},
		{"ids are of the first, uptime is the youngest's", []string{
			"# Server\nredis_version:7.0.15\nrun_id:a\nconfig_file:\nuptime_in_seconds:90\nuptime_in_days:0\n",
			"# Server\nredis_version:7.0.14\nrun_id:b\nconfig_file:/x:y\nuptime_in_seconds:7\nuptime_in_days:0\n",
		}, "# Server\nredis_version:7.0.15\nrun_id:a\nconfig_file:\nuptime_in_seconds:7\nuptime_in_days:0\n"},
		{"clients add up", []string{
			"# Clients\nconnected_clients:3\nclient_recent_max_input_buffer:8\n",
			"# Clients\nconnected_clients:4\nclient_recent_max_input_buffer:20\n",
		}, "# Clients\nconnected_clients:7\nclient_recent_max_input_buffer:20\n"},
		{"memory adds up, what follows from it is made again", []string{
			"# Memory\nused_memory:1000\nused_memory_human:1000B\nused_memory_rss:3000\nused_memory_peak:1500\nused_memory_peak_perc:66.67%\nused_memory_startup:200\nused_memory_dataset:400\nused_memory_dataset_perc:50.00%\nmaxmemory:0\nmaxmemory_human:0B\nmaxmemory_policy:noeviction\nmem_fragmentation_ratio:3.00\n",
			"# Memory\nused_memory:2000\nused_memory_human:1.95K\nused_memory_rss:6000\nused_memory_peak:2500\nused_memory_peak_perc:80.00%\nused_memory_startup:300\nused_memory_dataset:600\nused_memory_dataset_perc:35.29%\nmaxmemory:10\nmaxmemory_human:10B\nmaxmemory_policy:noeviction\nmem_fragmentation_ratio:3.00\n",
		}, "# Memory\nused_memory:3000\nused_memory_human:2.93K\nused_memory_rss:9000\nused_memory_peak:4000\nused_memory_peak_perc:75.00%\nused_memory_startup:500\nused_memory_dataset:1000\nused_memory_dataset_perc:40.00%\nmaxmemory:0\nmaxmemory_human:0B\nmaxmemory_policy:noeviction\nmem_fragmentation_ratio:3.00\n"},
		{"loading if any is", []string{
			"# Persistence\nloading:0\nrdb_changes_since_last_save:4\nrdb_last_save_time:200\nrdb_last_bgsave_status:ok\nrdb_last_bgsave_time_sec:-1\n",
			"# Persistence\nloading:1\nrdb_changes_since_last_save:2\nrdb_last_save_time:100\nrdb_last_bgsave_status:err\nrdb_last_bgsave_time_sec:3\nloading_eta_seconds:9\n",
		}, "# Persistence\nloading:1\nrdb_changes_since_last_save:6\nrdb_last_save_time:100\nrdb_last_bgsave_status:err\nrdb_last_bgsave_time_sec:3\nloading_eta_seconds:9\n"},
		{"counters and rates add up, decimals stay", []string{
			"# Stats\nkeyspace_hits:1\ninstantaneous_input_kbps:1.25\nlatest_fork_usec:10\n\n# CPU\nused_cpu_sys:0.125000\n",
			"# Stats\nkeyspace_hits:2\ninstantaneous_input_kbps:0.50\nlatest_fork_usec:30\n\n# CPU\nused_cpu_sys:1.500000\n",
		}, "# Stats\nkeyspace_hits:3\ninstantaneous_input_kbps:1.75\nlatest_fork_usec:30\n\n# CPU\nused_cpu_sys:1.625000\n"},
		{"replicas of all masters", []string{
			"# Replication\nrole:master\nconnected_slaves:1\nslave0:ip=a,port=1,state=online,offset=5,lag=0\nmaster_replid:x\n",
			"# Replication\nrole:master\nconnected_slaves:0\nmaster_replid:y\n",
			"# Replication\nrole:master\nconnected_slaves:2\nslave0:ip=b,port=2,state=online,offset=6,lag=0\nslave1:ip=c,port=3,state=online,offset=6,lag=1\nmaster_replid:z\n",
		}, "# Replication\nrole:master\nconnected_slaves:3\nslave0:ip=a,port=1,state=online,offset=5,lag=0\nslave1:ip=b,port=2,state=online,offset=6,lag=0\nslave2:ip=c,port=3,state=online,offset=6,lag=1\nmaster_replid:x\n"},
		{"calls of every command", []string{
			"# Commandstats\ncmdstat_get:calls=2,usec=10,usec_per_call=5.00,rejected_calls=0,failed_calls=1\n",
			"# Commandstats\ncmdstat_set:calls=1,usec=7,usec_per_call=7.00,rejected_calls=0,failed_calls=0\ncmdstat_get:calls=2,usec=5,usec_per_call=2.50,rejected_calls=3,failed_calls=0\n",
		}, "# Commandstats\ncmdstat_get:calls=4,usec=15,usec_per_call=3.75,rejected_calls=3,failed_calls=1\ncmdstat_set:calls=1,usec=7,usec_per_call=7.00,rejected_calls=0,failed_calls=0\n"},
		{"errors and latencies", []string{
			"# Errorstats\nerrorstat_ERR:count=2\n\n# Latencystats\nlatency_percentiles_usec_get:p50=1.003,p99=2.007\n",
			"# Errorstats\nerrorstat_ERR:count=1\nerrorstat_OOM:count=4\n\n# Latencystats\nlatency_percentiles_usec_get:p50=0.001,p99=9.023\n",
		}, "# Errorstats\nerrorstat_ERR:count=3\nerrorstat_OOM:count=4\n\n# Latencystats\nlatency_percentiles_usec_get:p50=1.003,p99=9.023\n"},
		{"keys, with the mean of the times to live", []string{
			"# Cluster\ncluster_enabled:1\n\n# Keyspace\n",
			"# Cluster\ncluster_enabled:1\n\n# Keyspace\ndb0:keys=10,expires=1,avg_ttl=100,subexpiry=0\n",
			"# Cluster\ncluster_enabled:1\n\n# Keyspace\ndb0:keys=5,expires=3,avg_ttl=200,subexpiry=2\n",
		}, "# Cluster\ncluster_enabled:0\n\n# Keyspace\ndb0:keys=15,expires=4,avg_ttl=175,subexpiry=2\n"},
		{"distributions", []string{
			"# Keysizes\ndb0_distrib_strings_sizes:1=3,4=2\n", "# Keysizes\ndb0_distrib_strings_sizes:1=1,1K=2\n",
		}, "# Keysizes\ndb0_distrib_strings_sizes:1=4,4=2,1K=2\n"},
		{"modules and sections of theirs are the first one's", []string{
			"# Modules\nmodule:name=a,ver=1\nmodule:name=b,ver=2\n\n# mod_stats\nmod_n:1\n", "# Modules\nmodule:name=a,ver=1\n\n# mod_stats\nmod_n:2\n",
		}, "# Modules\nmodule:name=a,ver=1\nmodule:name=b,ver=2\n\n# mod_stats\nmod_n:1\n"},
	}
	for _, tt := range tests {
		var texts []string
		for _, text := range tt.texts {
			texts = append(texts, crlf(text))
		}
		if got := Aggregate(texts, facts); got != crlf(tt.want) {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, crlf(tt.want))
		}
	}
}

func TestHumanBytes(t *testing.T) {
	for n, want := range map[float64]string{0: "0B", 1023: "1023B", 1024: "1.00K", 1536: "1.50K", 5 << 20: "5.00M", 3 << 30: "3.00G", 2 << 40: "2.00T", 7 << 50: "7.00P"} {
		if got := humanBytes(n); got != want {
			t.Errorf("%.0f: got %s, want %s", n, got, want)
		}
	}
}
