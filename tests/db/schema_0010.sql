-- A database of schema version 0010 with one record, the limits of a device and a trial.
PRAGMA application_id = 1717922158;
BEGIN TRANSACTION;
CREATE TABLE api_keys (
	id VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	scope VARCHAR NOT NULL,
	digest VARCHAR(64) NOT NULL,
	created_at DATETIME NOT NULL,
	expires_at DATETIME,
	revoked_at DATETIME, is_trusted BOOLEAN DEFAULT 0 NOT NULL,
	CONSTRAINT pk_api_keys PRIMARY KEY (id)
);
CREATE TABLE demand_callers (
	workload_key TEXT NOT NULL,
	device VARCHAR NOT NULL,
	caller VARCHAR NOT NULL,
	count INTEGER NOT NULL,
	last_seen DATETIME NOT NULL,
	CONSTRAINT pk_demand_callers PRIMARY KEY (workload_key, device, caller)
);
CREATE TABLE demands (
	workload_key TEXT NOT NULL,
	device VARCHAR NOT NULL,
	workload_text TEXT,
	count INTEGER NOT NULL,
	first_seen DATETIME NOT NULL,
	last_seen DATETIME NOT NULL, n_callers INTEGER DEFAULT '1' NOT NULL,
	CONSTRAINT pk_demands PRIMARY KEY (workload_key, device)
);
CREATE TABLE device_peaks (
	id VARCHAR(64) NOT NULL,
	device_id VARCHAR(64) NOT NULL,
	measured_at DATETIME NOT NULL,
	bandwidth_bytes_per_s DOUBLE NOT NULL,
	document TEXT NOT NULL,
	CONSTRAINT pk_device_peaks PRIMARY KEY (id),
	CONSTRAINT fk_device_peaks_device_id_devices FOREIGN KEY(device_id) REFERENCES devices (id)
);
INSERT INTO "device_peaks" VALUES('2543b22250275f241af75feab424d46bc8bdc2ac6d84b85c720ce7bd2fb7f0bb','7c0d586935203d4e2dbdb77dfe1dcdc42d6f3d1e11c49fef79b62bf426bd54e6','2025-01-01 00:00:00.000000',20000000000.0,'{"bandwidth_bytes_per_s":20000000000.0,"device":{"architecture":"x86_64","compute_units":4,"kind":"cpu","name":"cpu-0","platform":"Portable Computing Language","vendor":"GenuineIntel"},"measured_at":"2025-01-01T00:00:00","operations_per_s":{"float32":200000000000.0,"float64":100000000000.0}}');
CREATE TABLE devices (
	id VARCHAR(64) NOT NULL,
	platform VARCHAR NOT NULL,
	name VARCHAR NOT NULL,
	vendor VARCHAR NOT NULL,
	kind VARCHAR NOT NULL,
	architecture VARCHAR NOT NULL,
	compute_units INTEGER NOT NULL, microarchitecture VARCHAR, processor TEXT,
	CONSTRAINT pk_devices PRIMARY KEY (id)
);
INSERT INTO "devices" VALUES('7c0d586935203d4e2dbdb77dfe1dcdc42d6f3d1e11c49fef79b62bf426bd54e6','Portable Computing Language','cpu-0','GenuineIntel','cpu','x86_64',4,NULL,NULL);
CREATE TABLE environments (
	id VARCHAR(64) NOT NULL,
	device_id VARCHAR(64) NOT NULL,
	driver_version VARCHAR NOT NULL,
	document TEXT NOT NULL,
	CONSTRAINT pk_environments PRIMARY KEY (id),
	CONSTRAINT fk_environments_device_id_devices FOREIGN KEY(device_id) REFERENCES devices (id)
);
INSERT INTO "environments" VALUES('65b9d74ef6e48018df796f234f5bfddd0aafde2a253f64781f1076fbe90f4a0a','7c0d586935203d4e2dbdb77dfe1dcdc42d6f3d1e11c49fef79b62bf426bd54e6','6.0','{"device":{"architecture":"x86_64","compute_units":4,"kind":"cpu","name":"cpu-0","platform":"Portable Computing Language","vendor":"GenuineIntel"},"driver_version":"6.0","platform_version":"OpenCL 3.0","policy":{"rounds":3,"timer":"wall"},"software":{"loopy":"2025.2"}}');
CREATE TABLE feinsum_schema_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT feinsum_schema_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "feinsum_schema_version" VALUES('0010');
CREATE TABLE plans (
	id VARCHAR(64) NOT NULL,
	workload_key TEXT NOT NULL,
	plan_id VARCHAR(64) NOT NULL,
	device_id VARCHAR(64) NOT NULL,
	processes INTEGER NOT NULL,
	engine VARCHAR NOT NULL,
	median_s DOUBLE,
	recorded_at DATETIME NOT NULL,
	document TEXT NOT NULL,
	CONSTRAINT pk_plans PRIMARY KEY (id),
	CONSTRAINT fk_plans_device_id_devices FOREIGN KEY(device_id) REFERENCES devices (id)
);
CREATE TABLE "quarantine" (
	record_id VARCHAR(64) NOT NULL,
	received_at DATETIME NOT NULL,
	CONSTRAINT pk_quarantine PRIMARY KEY (record_id)
);
CREATE TABLE "recordings" (
	record_id VARCHAR(64) NOT NULL,
	recorder VARCHAR NOT NULL,
	received_at DATETIME NOT NULL,
	is_trusted BOOLEAN DEFAULT 0 NOT NULL,
	CONSTRAINT pk_recordings PRIMARY KEY (record_id, recorder)
);
CREATE TABLE records (
	id VARCHAR(64) NOT NULL,
	workload_key TEXT NOT NULL,
	environment_id VARCHAR(64) NOT NULL,
	device_id VARCHAR(64) NOT NULL,
	transform_name VARCHAR NOT NULL,
	transform_version INTEGER NOT NULL,
	median_s DOUBLE NOT NULL,
	speedup DOUBLE NOT NULL,
	recorded_at DATETIME NOT NULL,
	document TEXT NOT NULL,
	CONSTRAINT pk_records PRIMARY KEY (id),
	CONSTRAINT fk_records_workload_key_workloads FOREIGN KEY(workload_key) REFERENCES workloads ("key"),
	CONSTRAINT fk_records_environment_id_environments FOREIGN KEY(environment_id) REFERENCES environments (id),
	CONSTRAINT fk_records_device_id_devices FOREIGN KEY(device_id) REFERENCES devices (id)
);
INSERT INTO "records" VALUES('72bc708073cee482b8c139df211c8a559fb77e24d67dd63b53e2f8f600de25a5','fe1-test-workload-0','65b9d74ef6e48018df796f234f5bfddd0aafde2a253f64781f1076fbe90f4a0a','7c0d586935203d4e2dbdb77dfe1dcdc42d6f3d1e11c49fef79b62bf426bd54e6','rowwise',1,0.001,10.0,'2025-01-31 12:00:00.000000','{"environment":{"device":{"architecture":"x86_64","compute_units":4,"kind":"cpu","name":"cpu-0","platform":"Portable Computing Language","vendor":"GenuineIntel"},"driver_version":"6.0","platform_version":"OpenCL 3.0","policy":{"rounds":3,"timer":"wall"},"software":{"loopy":"2025.2"}},"measurement":{"baseline_s":[0.01],"footprint_bytes":8000,"n_warmup":1,"operations":{"float64":2000},"samples_s":[0.001,0.0009000000000000001,0.0011],"sizes":{"n":1000},"timer":"wall","verification":{"largest_error":1e-15,"reference":"reference","sizes":[{"n":17}],"tolerance":1e-09}},"provenance":{},"recorded_at":"2025-01-31T12:00:00+00:00","spec":{"name":"rowwise","parameters":{"lanes":8,"n":0,"order":["i","j"]},"version":1},"workload":"fe1-test-workload-0","workload_text":"text of fe1-test-workload-0"}');
CREATE TABLE retractions (
	id VARCHAR(64) NOT NULL,
	document_id VARCHAR(64) NOT NULL,
	retracted_by VARCHAR NOT NULL,
	retracted_at DATETIME NOT NULL,
	document TEXT NOT NULL,
	CONSTRAINT pk_retractions PRIMARY KEY (id)
);
CREATE TABLE trials (
	id VARCHAR(64) NOT NULL,
	workload_key TEXT NOT NULL,
	device_id VARCHAR(64) NOT NULL,
	driver_version VARCHAR NOT NULL,
	transform_name VARCHAR NOT NULL,
	transform_version INTEGER NOT NULL,
	status VARCHAR NOT NULL,
	median_s DOUBLE,
	ratio DOUBLE,
	recorded_at DATETIME NOT NULL,
	document TEXT NOT NULL,
	CONSTRAINT pk_trials PRIMARY KEY (id),
	CONSTRAINT fk_trials_device_id_devices FOREIGN KEY(device_id) REFERENCES devices (id)
);
INSERT INTO "trials" VALUES('9a774999f0210f7a7f3a5fee0e9224c9c32689c92cdb7d993db16da41c31d5a3','fe1-test-workload-0','7c0d586935203d4e2dbdb77dfe1dcdc42d6f3d1e11c49fef79b62bf426bd54e6','6.0','rowwise',1,'ok',0.001,0.1,'2025-01-31 12:00:00.000000','{"environment":{"device":{"architecture":"x86_64","compute_units":4,"kind":"cpu","name":"cpu-0","platform":"Portable Computing Language","vendor":"GenuineIntel"},"driver_version":"6.0","platform_version":"OpenCL 3.0","policy":{"rounds":3,"timer":"wall"},"software":{"loopy":"2025.2"}},"median_s":0.001,"message":"","ratio":0.1,"recorded_at":"2025-01-31T12:00:00.000000+00:00","sizes":{"n":1000},"spec":{"name":"rowwise","parameters":{"lanes":8,"n":0,"order":["i","j"]},"version":1},"status":"ok","workload":"fe1-test-workload-0","workload_text":"text of fe1-test-workload-0"}');
CREATE TABLE "verdicts" (
	record_id VARCHAR(64) NOT NULL,
	is_accepted BOOLEAN NOT NULL,
	decided_at DATETIME NOT NULL,
	CONSTRAINT pk_verdicts PRIMARY KEY (record_id)
);
CREATE TABLE workloads (
	"key" TEXT NOT NULL,
	text TEXT NOT NULL,
	CONSTRAINT pk_workloads PRIMARY KEY ("key")
);
INSERT INTO "workloads" VALUES('fe1-test-workload-0','text of fe1-test-workload-0');
CREATE INDEX ix_environments_device_id ON environments (device_id);
CREATE INDEX ix_records_workload_key_device_id ON records (workload_key, device_id);
CREATE INDEX ix_records_environment_id ON records (environment_id);
CREATE INDEX ix_records_device_id ON records (device_id);
CREATE INDEX ix_records_transform_name_transform_version ON records (transform_name, transform_version);
CREATE INDEX ix_records_recorded_at ON records (recorded_at);
CREATE INDEX ix_device_peaks_device_id ON device_peaks (device_id);
CREATE INDEX ix_trials_workload_key ON trials (workload_key);
CREATE INDEX ix_trials_device_id ON trials (device_id);
CREATE INDEX ix_demands_count ON demands (count);
CREATE INDEX ix_retractions_document_id ON retractions (document_id);
CREATE INDEX ix_retractions_retracted_at ON retractions (retracted_at);
CREATE INDEX ix_demand_callers_caller ON demand_callers (caller);
CREATE INDEX ix_plans_workload_key ON plans (workload_key);
CREATE INDEX ix_plans_device_id ON plans (device_id);
CREATE INDEX ix_plans_recorded_at ON plans (recorded_at);
COMMIT;
