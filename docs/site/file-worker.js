// Browsers start no worker from a file, where the site may be read too: there the search runs in a frame that is not seen.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.({ data: structuredClone(data) });
      const script = inside.document.createElement("script");
      script.src = new URL(url, document.baseURI);
      this.loaded = new Promise((done) => script.addEventListener("load", done));
      script.addEventListener("error", (event) => this.onerror?.(event));
      inside.document.body.append(script);
    }

    async postMessage(data) {
      const copy = structuredClone(data);
      await this.loaded;
      this.frame.contentWindow?.onmessage({ data: copy });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
