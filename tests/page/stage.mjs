// The simulator and forkpoint as processes of their own, on free ports.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const BINARY = process.env.FORKPOINT ?? "target/debug/forkpoint";

/** Starts a process, and waits for a line that every pattern finds once. */
async function start(args, patterns, environment = {}) {
  const child = spawn(BINARY, args, { stdio: ["ignore", "pipe", "pipe"], env: environment });
  const found = {};
  const ended = new Promise((resolve) => child.once("exit", resolve));
  await new Promise((resolve, reject) => {
    ended.then((code) => reject(new Error(`${args[0]} ended with ${code}`)));
    const look = (line) => {
      for (const [name, pattern] of Object.entries(patterns)) found[name] ??= line.match(pattern)?.[1];
      if (Object.keys(patterns).every((name) => found[name])) resolve();
    };
    for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream }).on("line", look);
  });
  const stop = async () => {
    child.kill("SIGTERM");
    await ended;
  };
  return { ...found, stop };
}

export async function startSim(...options) {
  const sim = await start(["sim", "--listen", "127.0.0.1:0", ...options], { url: /(http:\/\/\S+)/ });
  return {
    ...sim,
    /** Every request that was billed. */
    async requests() {
      const { requests } = await (await fetch(`${sim.url}/sim/requests`)).json();
      return requests.filter((request) => request.usage);
    },
  };
}

/** `forkpoint demo --stay` with its live page. */
export const startDemo = (...options) => start(["demo", "--stay", ...options], { admin: /^ +(http:\S+)\/$/ });

/** forkpoint in front of a simulator; `ports` of an earlier one are taken again. */
export async function startForkpoint(upstream, settings = {}, ports = {}) {
  const args = [
    "serve", "--listen", `127.0.0.1:${ports.proxy ?? 0}`, "--admin-listen", `127.0.0.1:${ports.admin ?? 0}`, "--upstream", upstream,
  ];
  const environment = Object.fromEntries(Object.entries(settings).map(([name, value]) => [`FORKPOINT_${name}`, String(value)]));
  const running = await start(args, { proxy: /proxy +(http:\/\/\S+)/, admin: /admin +(http:\/\/\S+)/, off: /off +(\S+)/ }, environment);
  return { ...running, ports: { proxy: new URL(running.proxy).port, admin: new URL(running.admin).port } };
}
