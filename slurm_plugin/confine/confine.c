/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * gandiva-confine BLOCK PID
 * gandiva-confine --probe
 *
 * Opens and closes the GPUs of a job as the file `turn` of its control block says (docs/interfaces.md), by the
 * device control groups that Slurm has made for the job. PID is any process of it. Run as root: by the node
 * agent at each switch, and by the SPANK plugin at the start of each step, since slurmstepd opens all GPUs of
 * the job for each. Both may come at the same time: each holds a lock in the block, which root alone can open,
 * while it reads and applies.
 *
 * Version 1: `devices.deny` of the job's folder reaches all folders in it. `devices.allow` does not, so it is
 * written in each of them, from the top.
 * Version 2: Slurm has its program on the job's folder and on those of tasks, with flags that let nothing else
 * be put there; ours is on the folder of each step, and counts for all in it. Slurm's of the job would count no
 * more below (BPF_F_ALLOW_OVERRIDE), and a batch script has no other: it is put beside ours. (A program more,
 * then the old one goes: at no moment is there none.)
 *
 * With --probe: whether this node has what it takes. Exit status 0, or 1 with the reason on standard error.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEVICES_MAX 256
#define FILE_MAX 8192
#define PROGRAM_NAME "gandiva_turn"

struct device {
	unsigned major, minor;
	bool open;
};

struct turn {
	unsigned count;
	struct device devices[DEVICES_MAX];
};

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void die(const char *format, ...)
{
	va_list ap;

	fputs("gandiva-confine: ", stderr);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

static size_t read_text(int folder, const char *name, char *text, size_t size)
{
	size_t length = 0;
	int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		die("%s: %s", name, strerror(errno));
	for (;;) {
		ssize_t n = read(fd, text + length, size - length);

		if (n < 0)
			die("%s: %s", name, strerror(errno));
		length += (size_t) n;
		if (!n)
			break;
		if (length == size)
			die("%s: longer than %zu bytes", name, size - 1);
	}
	close(fd);
	text[length] = '\0';
	return length;
}

/* "on +195:2 -195:0 -195:1": the devices it may open now, and those that it may not. */
static void read_turn(int folder, struct turn *turn)
{
	char text[FILE_MAX];
	char *save = NULL;

	read_text(folder, "turn", text, sizeof(text));
	turn->count = 0;
	(void) strtok_r(text, " \n", &save);
	for (char *word; (word = strtok_r(NULL, " \n", &save)) != NULL;) {
		struct device *device = &turn->devices[turn->count];
		char sign, end;

		if (turn->count == DEVICES_MAX ||
		    sscanf(word, "%c%u:%u%c", &sign, &device->major, &device->minor, &end) != 3 ||
		    (sign != '+' && sign != '-'))
			die("turn: expected +MAJOR:MINOR or -MAJOR:MINOR, at most %d of them, found %.40s", DEVICES_MAX, word);
		device->open = sign == '+';
		turn->count++;
	}
}

/* --- the folders of a control group ---------------------------------------- */

/*
 * Where the hierarchy with this controller is mounted ("": version 2), and what
 * of a process's path lies above the mount. False where it is mounted nowhere.
 */
static bool find_mount(const char *controller, char *point, char *above)
{
	char line[PATH_MAX * 2 + 1024];
	bool found = false;
	FILE *file = fopen("/proc/self/mountinfo", "re");

	while (file && !found && fgets(line, sizeof(line), file)) {
		char *rest = strstr(line, " - ");
		char kind[64], options[1024];

		if (!rest || sscanf(rest, " - %63s %*s %1023s", kind, options) != 2 ||
		    strcmp(kind, *controller ? "cgroup" : "cgroup2") ||
		    sscanf(line, "%*s %*s %*s %4095s %4095s", above, point) != 2)
			continue;
		found = !*controller;
		for (char *word, *save = NULL, *at = options; !found && (word = strtok_r(at, ",", &save)); at = NULL)
			found = !strcmp(word, controller);
	}
	if (file)
		fclose(file);
	if (!strcmp(above, "/"))
		*above = '\0';
	return found;
}

/* Cut a path behind the folder of the job; false where it has none. */
static bool cut_to_job(char *path, bool version2)
{
	char *job = strstr(path, version2 ? "slurmstepd.scope/" : "/slurm");
	size_t digits;

	/* Users own control groups below their own slice and can give them any name. */
	if (strstr(path, "/user.slice/") || strstr(path, "/user@"))
		return false;
	if (job && version2) {
		/* job_N, or the job's SLUID. */
		job += strlen("slurmstepd.scope/");
		if (strncmp(job, "job_", 4) && *job != 's')
			return false;
		job[strcspn(job, "/")] = '\0';
		return true;
	}
	job = job ? strstr(job, "/job_") : NULL;
	if (!job)
		return false;
	job += strlen("/job_");
	digits = strspn(job, "0123456789");
	if (!digits || (job[digits] && job[digits] != '/'))
		return false;
	job[digits] = '\0';
	return true;
}

/*
 * The folder of the job of a process: the version of its hierarchy, 0 where
 * Slurm has made none that devices could be closed in.
 */
static int find_job(const char *pid, char *folder, size_t size)
{
	static char text[FILE_MAX * 8];
	char name[64], point[PATH_MAX], above[PATH_MAX];
	char *save = NULL;

	snprintf(name, sizeof(name), "/proc/%s/cgroup", pid);
	read_text(AT_FDCWD, name, text, sizeof(text));
	/* A host may have both: version 1 where it has the controller. */
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *controllers = strchr(line, ':');
		char *path = controllers ? strchr(controllers + 1, ':') : NULL;
		bool version2 = controllers && controllers[1] == ':';
		bool devices = false;

		if (!path)
			continue;
		*path++ = '\0';
		if (!version2) {
			for (char *word, *at = controllers + 1, *rest = NULL; (word = strtok_r(at, ",", &rest)); at = NULL)
				devices = devices || !strcmp(word, "devices");
			if (!devices)
				continue;
		}
		if (!cut_to_job(path, version2) || !find_mount(version2 ? "" : "devices", point, above))
			continue;
		if (!strncmp(path, above, strlen(above)))
			path += strlen(above);
		if ((size_t) snprintf(folder, size, "%s%s", point, path) >= size)
			die("%s: too long", path);
		return version2 ? 2 : 1;
	}
	return 0;
}

/* --- version 1 --------------------------------------------------------------- */

static void tell(int folder, const char *name, const struct device *device)
{
	char text[64];
	int length = snprintf(text, sizeof(text), "c %u:%u rwm", device->major, device->minor);
	int fd = openat(folder, name, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, (size_t) length) != length) {
		/* A step that ends meanwhile takes its folder with it. */
		if (errno != ENOENT && errno != ENODEV)
			die("%s: %s: %s%s", name, text, strerror(errno),
			    errno == EPERM ? " (Slurm has not allocated it to the job)" : "");
	}
	if (fd >= 0)
		close(fd);
}

/* Open the devices that are the job's now in a folder and in all below it; the one above has them already. */
static void open_below(int folder, const struct turn *turn)
{
	DIR *entries;

	for (unsigned i = 0; i < turn->count; i++)
		if (turn->devices[i].open)
			tell(folder, "devices.allow", &turn->devices[i]);
	entries = fdopendir(dup(folder));
	if (!entries)
		die("%s", strerror(errno));
	for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
		int below;

		if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
			continue;
		below = openat(folder, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (below < 0)
			continue;
		open_below(below, turn);
		close(below);
	}
	closedir(entries);
}

static void apply_version1(int job, const struct turn *turn)
{
	for (unsigned i = 0; i < turn->count; i++)
		if (!turn->devices[i].open)
			tell(job, "devices.deny", &turn->devices[i]);
	open_below(job, turn);
}

/* --- version 2 --------------------------------------------------------------- */

static long bpf(int command, union bpf_attr *attributes)
{
	return syscall(SYS_bpf, command, attributes, sizeof(*attributes));
}

#define INSTRUCTION(CODE, DST, SRC, OFF, IMM) \
	((struct bpf_insn) { .code = (CODE), .dst_reg = (DST), .src_reg = (SRC), .off = (OFF), .imm = (int) (IMM) })

/* A program that refuses the closed devices and lets all else pass to the other programs; its descriptor. */
static int load(const struct turn *turn)
{
	static struct bpf_insn code[8 + DEVICES_MAX * 4];
	struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
	union bpf_attr attributes = { 0 };
	unsigned n = 0, end;
	long fd;

	/* r2: kind of device, r3: major, r4: minor. */
	code[n++] = INSTRUCTION(BPF_LDX | BPF_MEM | BPF_W, 2, 1, offsetof(struct bpf_cgroup_dev_ctx, access_type), 0);
	code[n++] = INSTRUCTION(BPF_ALU | BPF_AND | BPF_K, 2, 0, 0, 0xffff);
	code[n++] = INSTRUCTION(BPF_LDX | BPF_MEM | BPF_W, 3, 1, offsetof(struct bpf_cgroup_dev_ctx, major), 0);
	code[n++] = INSTRUCTION(BPF_LDX | BPF_MEM | BPF_W, 4, 1, offsetof(struct bpf_cgroup_dev_ctx, minor), 0);
	end = n++; /* to the end, once it is known where that is */
	for (unsigned i = 0; i < turn->count; i++) {
		const struct device *device = &turn->devices[i];

		if (device->open)
			continue;
		code[n++] = INSTRUCTION(BPF_JMP | BPF_JNE | BPF_K, 3, 0, 3, device->major);
		code[n++] = INSTRUCTION(BPF_JMP | BPF_JNE | BPF_K, 4, 0, 2, device->minor);
		code[n++] = INSTRUCTION(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0);
		code[n++] = INSTRUCTION(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	}
	code[end] = INSTRUCTION(BPF_JMP | BPF_JNE | BPF_K, 2, 0, n - end - 1, BPF_DEVCG_DEV_CHAR);
	code[n++] = INSTRUCTION(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 1);
	code[n++] = INSTRUCTION(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);

	/* Before Linux 5.11 programs count as locked memory. */
	setrlimit(RLIMIT_MEMLOCK, &all);
	attributes.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
	attributes.insns = (uintptr_t) code;
	attributes.insn_cnt = n;
	attributes.license = (uintptr_t) "GPL";
	strcpy(attributes.prog_name, PROGRAM_NAME);
	fd = bpf(BPF_PROG_LOAD, &attributes);
	if (fd < 0)
		die("the kernel takes no program for devices: %s", strerror(errno));
	return (int) fd;
}

static bool is_ours(int program, unsigned *id)
{
	struct bpf_prog_info info = { 0 };
	union bpf_attr attributes = { 0 };

	attributes.info.bpf_fd = (unsigned) program;
	attributes.info.info_len = sizeof(info);
	attributes.info.info = (uintptr_t) &info;
	if (bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes))
		return false;
	*id = info.id;
	return !strcmp(info.name, PROGRAM_NAME);
}

struct programs {
	unsigned count, ids[64];
};

/* The programs that are attached to a folder itself. */
static void attached(int folder, struct programs *found)
{
	union bpf_attr attributes = { 0 };

	attributes.query.target_fd = (unsigned) folder;
	attributes.query.attach_type = BPF_CGROUP_DEVICE;
	attributes.query.prog_ids = (uintptr_t) found->ids;
	attributes.query.prog_cnt = sizeof(found->ids) / sizeof(found->ids[0]);
	if (bpf(BPF_PROG_QUERY, &attributes))
		die("programs of a folder: %s", strerror(errno));
	found->count = attributes.query.prog_cnt;
}

/* A descriptor; -1: it has gone. */
static int program_of(unsigned id)
{
	union bpf_attr attributes = { 0 };

	attributes.prog_id = id;
	return (int) bpf(BPF_PROG_GET_FD_BY_ID, &attributes);
}

static void attach(int step, int program, const char *name)
{
	union bpf_attr attributes = { 0 };

	attributes.target_fd = (unsigned) step;
	attributes.attach_bpf_fd = (unsigned) program;
	attributes.attach_type = BPF_CGROUP_DEVICE;
	attributes.attach_flags = BPF_F_ALLOW_MULTI;
	if (bpf(BPF_PROG_ATTACH, &attributes))
		die("%s: cannot attach a program: %s", name, strerror(errno));
}

/* Put the programs of the job on a step, unless they are there. */
static void inherit(int job, int step, const char *name)
{
	struct programs wanted, there;

	attached(job, &wanted);
	attached(step, &there);
	for (unsigned i = 0; i < wanted.count; i++) {
		bool has = false;
		int program;

		for (unsigned k = 0; k < there.count; k++)
			has = has || there.ids[k] == wanted.ids[i];
		program = has ? -1 : program_of(wanted.ids[i]);
		if (program < 0)
			continue;
		attach(step, program, name);
		close(program);
	}
}

/* Take our programs off a folder, but for the one with this number. */
static void detach_others(int folder, unsigned kept)
{
	struct programs found;

	attached(folder, &found);
	for (unsigned i = 0; i < found.count; i++) {
		union bpf_attr detach = { 0 };
		unsigned id = 0;
		int program = found.ids[i] == kept ? -1 : program_of(found.ids[i]);

		if (program < 0)
			continue;
		detach.target_fd = (unsigned) folder;
		detach.attach_bpf_fd = (unsigned) program;
		detach.attach_type = BPF_CGROUP_DEVICE;
		if (is_ours(program, &id) && bpf(BPF_PROG_DETACH, &detach))
			die("an older program stays on a step: %s", strerror(errno));
		close(program);
	}
}

static void apply_version2(int job, const struct turn *turn)
{
	int program = load(turn);
	unsigned id = 0;
	DIR *entries = fdopendir(dup(job));

	if (!entries || !is_ours(program, &id))
		die("%s", strerror(errno));
	for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
		int step;

		if (entry->d_type != DT_DIR || strncmp(entry->d_name, "step_", 5))
			continue;
		step = openat(job, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (step < 0)
			continue;
		inherit(job, step, entry->d_name);
		attach(step, program, entry->d_name);
		detach_others(step, id);
		close(step);
	}
	closedir(entries);
	close(program);
}

/* ------------------------------------------------------------------------------ */

/* Whether devices of jobs can be closed here, as far as that shows without a job. */
static void probe(void)
{
	char point[PATH_MAX] = "", above[PATH_MAX] = "";
	static const struct turn nothing;

	if (find_mount("devices", point, above)) {
		if (access(point, W_OK))
			die("%s: %s", point, strerror(errno));
		return;
	}
	if (!find_mount("", point, above))
		die("no control groups are mounted here");
	close(load(&nothing));
}

int main(int argc, char **argv)
{
	struct turn turn;
	struct stat st;
	char folder[PATH_MAX];
	int block, job, lock, version;

	if (argc == 2 && !strcmp(argv[1], "--probe")) {
		probe();
		return 0;
	}
	if (argc != 3 || !*argv[2] || strspn(argv[2], "0123456789") != strlen(argv[2]))
		die("usage: gandiva-confine BLOCK PID, or gandiva-confine --probe");
	block = open(argv[1], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (block < 0 || fstat(block, &st))
		die("%s: %s", argv[1], strerror(errno));
	if (st.st_uid != 0 || (st.st_mode & 022))
		die("%s is not root's alone", argv[1]);
	version = find_job(argv[2], folder, sizeof(folder));
	if (!version)
		die("Slurm has no device control group for process %s: ConstrainDevices=yes in cgroup.conf makes one", argv[2]);
	job = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (job < 0)
		die("%s: %s", folder, strerror(errno));
	/* Nobody holds it for long: who calls this has a deadline. */
	lock = openat(block, "turn.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (lock < 0 || flock(lock, LOCK_EX))
		die("%s/turn.lock: %s", argv[1], strerror(errno));
	read_turn(block, &turn);
	if (version == 1)
		apply_version1(job, &turn);
	else
		apply_version2(job, &turn);
	return 0;
}
