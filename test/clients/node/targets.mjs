// What the programs of this directory have in common: targets, and lines about them.

// each runs every feature of every target in each protocol. The arguments are targets,
// NAME=single|cluster@HOST:PORT[,HOST:PORT]...; open(target) returns the features, by
// name, and close. It prints one line per target, protocol and feature that works; what
// does not is printed with its error, whose stack goes to standard error.
export async function each(protocols, open) {
  for (const text of process.argv.slice(2)) {
    const [, name, kind, addresses] = /^(.+)=(single|cluster)@(.+)$/.exec(text);
    const nodes = addresses.split(",").map((address) => {
      const colon = address.lastIndexOf(":");
      return { host: address.slice(0, colon), port: Number(address.slice(colon + 1)) };
    });
    for (const protocol of protocols) {
      const { close, ...features } = await open({ name, cluster: kind === "cluster", nodes, protocol });
      for (const [feature, run] of Object.entries(features)) {
        const line = `${name} RESP${protocol} ${feature}`;
        try {
          await inTime(run());
          console.log(line);
        } catch (error) {
          console.log(`${line}: ${String(error).replaceAll("\n", " ")}`);
          console.error(error);
        }
      }
      await close();
    }
  }
}

// inTime fails instead of waiting for ever; each step takes milliseconds.
function inTime(promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("no answer within 30 s")), 30_000);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
